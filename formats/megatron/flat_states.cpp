#include "formats/megatron/flat_states.h"

#include "libshard/catalog/flat_buffer.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::megatron {

namespace {

/// A parameter's position in the buffers of the ranks of its stage.
struct FlatParameter {
  std::string_view name;  ///< The name in the ranks' files.
  Dims shape;
  std::size_t optimizer = 0;
  std::int64_t begin = 0;
};

class FlatMerge {
 public:
  FlatMerge(Wholes& wholes, Arena& arena, const Save& save) : wholes_(wholes), arena_(arena), save_(save) {}

  bool run() {
    if (save_.optimizers.empty()) return false;
    std::vector<std::vector<FlatParameter>> laid_out;
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
        laid_out.emplace_back();
        if (!lay_out(stage, chunk, laid_out.back())) return false;
      }
    }
    auto next = laid_out.begin();
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      for (std::size_t chunk = 0; chunk < chunks(); ++chunk) add_states(stage, chunk, *next++);
    }
    return true;
  }

 private:
  std::size_t chunks() const { return save_.ranks.front().chunks.size(); }

  /// Finds the positions of a chunk's parameters; false if they are not certain. If there are two optimizers, the
  /// second one has the experts, which have fewer data-parallel ranks.
  bool lay_out(std::int64_t stage, std::size_t chunk, std::vector<FlatParameter>& all) const {
    const std::size_t optimizers = save_.optimizers[save_.first_rank(stage)].optimizers.size();
    if (optimizers == 0 || optimizers > 2) return false;
    for (std::size_t optimizer = 0; optimizer < optimizers; ++optimizer) {
      std::vector<std::int64_t> numels;
      const std::size_t first = all.size();
      for (const auto& [name, view] : save_.ranks_of(stage).front().chunks[chunk].tensors.entries()) {
        const bool is_experts = meaning_of(name, false).experts != Meaning::Experts::kNone;
        if (!is_parameter(name) || (optimizers == 2 && is_experts != (optimizer == 1))) continue;
        all.push_back({name, view.shape, optimizer});
        numels.push_back(checked_numel(view.shape));
      }
      const std::optional<std::int64_t> elements = elements_of(stage, optimizers, optimizer, chunk);
      const auto begins = elements ? begins_in_saved_buffer(numels, *elements) : std::nullopt;
      if (!begins) return false;
      for (std::size_t i = 0; i < begins->size(); ++i) all[first + i].begin = (*begins)[i];
    }
    return true;
  }

  /// Ranks with different experts are data-parallel ranks of the other parameters, whose buffers only the first of them
  /// saves.
  bool is_elsewhere(std::size_t rank, std::size_t optimizer) const {
    const auto& states = save_.optimizers[rank].optimizers;
    return states.size() == 2 && optimizer == 0 && states[0].empty() && save_.ranks[rank].rank.expert > 0;
  }

  /// The length of the buffers of one optimizer and chunk, which must be equal on all ranks of the stage. Nothing if
  /// they differ.
  std::optional<std::int64_t> elements_of(std::int64_t stage, std::size_t optimizers, std::size_t optimizer,
                                          std::size_t chunk) const {
    std::optional<std::int64_t> elements;
    for (std::size_t rank = save_.first_rank(stage); rank < save_.first_rank(stage + 1); ++rank) {
      const auto& states = save_.optimizers[rank].optimizers;
      if (states.size() != optimizers) return std::nullopt;
      if (is_elsewhere(rank, optimizer)) continue;
      if (states[optimizer].size() != chunks()) return std::nullopt;
      for (const auto& [name, view] : states[optimizer][chunk].entries()) {
        if (elements.value_or(view.shape[0]) != view.shape[0]) return std::nullopt;
        elements = view.shape[0];
      }
    }
    return elements;
  }

  void add_states(std::int64_t stage, std::size_t chunk, const std::vector<FlatParameter>& parameters) {
    std::vector<Meaning> meanings;
    for (const FlatParameter& each : parameters) {
      meanings.push_back(wholes_.meaning(each.name, stage, static_cast<std::int64_t>(chunk)));
    }
    for (std::size_t rank = save_.first_rank(stage); rank < save_.first_rank(stage + 1); ++rank) {
      const OptimizerStates& states = save_.optimizers[rank];
      for (std::size_t optimizer = 0; optimizer < states.optimizers.size(); ++optimizer) {
        if (is_elsewhere(rank, optimizer)) continue;
        for (const auto& [state, view] : states.optimizers[optimizer][chunk].entries()) {
          const std::uint32_t stored = wholes_.store(rank, states.file, view);
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (parameters[i].optimizer == optimizer) add(parameters[i], meanings[i], state, rank, stored, view.first);
          }
        }
      }
    }
  }

  void add(const FlatParameter& parameter, const Meaning& meaning, std::string_view state, std::size_t rank,
           std::uint32_t stored, std::int64_t first) {
    const Dims shape = parameter.shape, strides = row_major_strides(arena_, shape);
    wholes_.add_state(state == "param" ? kMasters : state, meaning, rank, stored,
                      {{shape.begin(), shape.end()}, {strides.begin(), strides.end()}, first + parameter.begin});
  }

  Wholes& wholes_;
  Arena& arena_;
  const Save& save_;
};

}  // namespace

bool add_flat_states(Wholes& wholes, Arena& arena, const Save& save) { return FlatMerge(wholes, arena, save).run(); }

}  // namespace shard::megatron
