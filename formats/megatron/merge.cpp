#include "formats/megatron/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "formats/megatron/names.h"
#include "formats/megatron/tensor_assembler.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/load_tree.h"
#include "formats/torch/saved_file.h"
#include "libshard/catalog/layouts/flat_buffer.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"

namespace shard::megatron {

namespace {

// The states of a torch optimizer, which numbers parameters, by the parameters' names.
// Source: megatron/core/optimizer/{__init__,optimizer}.py of Megatron-Core 0.16.1.

constexpr std::string_view kMastersKey = "fp32_from_fp16_params";
constexpr std::size_t kMaxStates = 16;

/// The dict of torch's optimizer inside Megatron's. If Megatron's has no master weights, it is that dict itself.
const Value* torch_optimizer(const RankStates& rank) {
  const Value* const outer = find_key(*rank.root, "optimizer");
  const Value* const inner = outer == nullptr ? nullptr : find_key(*outer, "optimizer");
  const Value* const found = inner != nullptr ? inner : outer;
  return found != nullptr && is_mapping(*found) ? found : nullptr;
}

std::span<Value*> states_of(const RankStates& rank) {
  const Value* const optimizer = torch_optimizer(rank);
  const Value* const state = optimizer == nullptr ? nullptr : find_key(*optimizer, "state");
  return state == nullptr ? std::span<Value*>() : mapping_items(*state);
}

/// A parameter in the numbering of an optimizer's groups.
struct Parameter {
  std::string_view name;  ///< The name in its rank's file.
  std::size_t chunk = 0;
  const TensorView* view = nullptr;  ///< The copy in the model.
};

/// A state of a parameter, or its master weights.
struct State {
  std::size_t parameter = 0;
  std::string_view name;
  TensorView view;
};

bool is_half(DType dtype) { return dtype == DType::kBfloat16 || dtype == DType::kFloat16; }

/// The states of one rank by parameter; nothing if the assignment is not certain.
class RankIndex {
 public:
  RankIndex(Arena& arena, const Save& save, const RankStates& rank)
      : arena_(arena), hidden_(arena), save_(save), rank_(rank) {}

  bool read() {
    const Value* const optimizer = torch_optimizer(rank_);
    const Value* const groups = optimizer == nullptr ? nullptr : find_key(*optimizer, "param_groups");
    if (groups == nullptr || groups->kind != ValueKind::kList) return false;
    for_each_parameter([this](const Parameter&) { ++count_; });
    for (const Value* group : groups->items()) {
      if (!number_group(*group)) return false;
    }
    return parameters_.size() == count_ && read_states() && read_masters();
  }

  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const State> states() const { return states_; }

 private:
  template <class Visit>
  void for_each_parameter(const Visit& visit) const {
    for (std::size_t chunk = 0; chunk < rank_.chunks.size(); ++chunk) {
      for (const auto& [name, view] : rank_.chunks[chunk].tensors.entries()) {
        if (is_parameter(name)) visit(Parameter{name, chunk, &view});
      }
    }
  }

  /// Adds the parameters that the group must have by its own settings, under its numbers.
  bool number_group(const Value& group) {
    const Value* const decay = find_key(group, "wd_mult");
    const Value* const numbers = find_key(group, "params");
    if (decay == nullptr || decay->kind != ValueKind::kFloat || numbers == nullptr) return false;
    const Value* const experts = find_key(group, "is_expert_parallel");
    const bool are_experts = experts != nullptr && experts->boolean();
    std::size_t next = parameters_.size();
    arena_.charge(Charge::kVisits, static_cast<std::int64_t>(count_));
    for_each_parameter([&](const Parameter& each) {
      const bool is_expert =
          save_.arguments.expert > 1 && meaning_of(each.name, false).experts != Meaning::Experts::kNone;
      const bool decays = each.view->shape.size() != 1 && !each.name.ends_with(".bias");
      if (is_expert == are_experts && decays == (decay->real != 0)) parameters_.push_back(each);
    });
    const std::vector<std::int64_t> indices = pickle::naturals(*numbers, "params");
    if (indices.size() != parameters_.size() - next) return false;
    for (const std::int64_t index : indices) {
      if (!by_index_.try_emplace(index, next++).is_new) return false;
    }
    groups_.push_back(indices.size());
    return true;
  }

  std::optional<TensorView> tensor(const Value& value) {
    const bool wrapped = torch_save::is_parameter(value, hidden_);
    return torch_save::as_tensor(arena_, wrapped ? *value.items()[0] : value);
  }

  bool read_states() {
    for (const auto [number, of_parameter] : ItemPairs(states_of(rank_))) {
      const std::size_t* const parameter = number->kind == ValueKind::kInt ? by_index_.find(number->number) : nullptr;
      const std::span<Value*> states = mapping_items(*of_parameter);
      if (parameter == nullptr || states.size() > 2 * kMaxStates) return false;
      for (const auto [name, state] : ItemPairs(states)) {
        const std::optional<TensorView> view = tensor(*state);
        if (!view || view->shape.empty()) continue;
        if (!name->is_string() || !add(*parameter, name->text(), *view)) return false;
      }
    }
    return true;
  }

  bool add(std::size_t parameter, std::string_view name, const TensorView& view) {
    if (view.shape != parameters_[parameter].view->shape) return false;
    arena_.charge(Charge::kShards);
    states_.push_back({parameter, name, view});
    return true;
  }

  /// Reads the master weights of 16-bit parameters, by group.
  bool read_masters() {
    const Value* const outer = find_key(*rank_.root, "optimizer");
    const Value* const masters = find_key(*outer, kMastersKey);
    if (masters == nullptr) return true;
    if (masters->kind != ValueKind::kList || masters->items().size() != groups_.size()) return false;
    std::size_t parameter = 0;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const std::span<Value*> items = masters->items()[group]->items();
      std::size_t next = 0;
      for (const std::size_t end = parameter + groups_[group]; parameter < end; ++parameter) {
        if (!is_half(parameters_[parameter].view->dtype)) continue;
        const std::optional<TensorView> view = next < items.size() ? tensor(*items[next++]) : std::nullopt;
        if (!view || !add(parameter, kMasters, *view)) return false;
      }
      if (next != items.size()) return false;
    }
    return true;
  }

  Arena& arena_;
  torch_save::HiddenTensors hidden_;
  const Save& save_;
  const RankStates& rank_;
  std::size_t count_ = 0;              ///< The number of all parameters.
  std::vector<Parameter> parameters_;  ///< In the order of groups.
  std::vector<std::size_t> groups_;    ///< The number of parameters in each group.
  HashMap<std::int64_t, std::size_t> by_index_;
  std::vector<State> states_;
};

/// The mapping with a different value under a key; without the key if `value` is null.
Value* with_value(Arena& arena, const Value& mapping, std::string_view key, Value* value) {
  return change_items(arena, mapping, [&](const Value& name, Value* old) {
    return name.is_string() && name.text() == key ? value : old;
  });
}

/// True if a rank's file contains such states.
bool has_indexed_states(const RankStates& rank) {
  const Value* const outer = find_key(*rank.root, "optimizer");
  return outer != nullptr && (find_key(*outer, kMastersKey) != nullptr || !states_of(rank).empty());
}

/// Adds the states of all parameters, and the master weights of those with 16 bits, to `wholes` as
/// optimizer.state.STATE.NAME.
///
/// Parameters are numbered group by group: first those with weight decay, then vectors and biases. Experts on separate
/// ranks have separate groups. Every group must have the number of parameters, and every state the shape, that follow
/// from the model's names.
/// \returns false, without changes, if some do not.
bool add_indexed_states(TensorAssembler& wholes, Arena& arena, const Save& save) {
  std::vector<RankIndex> all;
  for (const RankStates& rank : save.ranks) {
    all.emplace_back(arena, save, rank);
    if (!has_indexed_states(rank) || !all.back().read()) return false;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::int64_t stage = save.ranks[rank].rank.pipeline;
    for (const State& state : all[rank].states()) {
      const Parameter& parameter = all[rank].parameters()[state.parameter];
      const Meaning meaning = wholes.meaning(parameter.name, stage, static_cast<std::int64_t>(parameter.chunk));
      wholes.add_state(state.name, meaning, rank, wholes.store(rank, save.ranks[rank].file, state.view),
                       part_of(state.view.shape, state.view.strides, state.view.first));
    }
  }
  return true;
}

/// The optimizer in a rank's file without such states. Values that do not have their parameters' shapes are kept. \pre
/// has_indexed_states(rank)
Value* without_indexed_states(Arena& arena, const RankStates& rank) {
  const Value& outer = *find_key(*rank.root, "optimizer");
  std::vector<Value*> states;
  for (const auto [number, of_parameter] : ItemPairs(states_of(rank))) {
    std::vector<Value*> kept;
    for (const auto [name, state] : ItemPairs(*of_parameter)) {
      const std::optional<TensorView> view = torch_save::as_tensor(arena, *state);
      if (!view || view->shape.empty()) kept.insert(kept.end(), {name, state});
    }
    if (!kept.empty()) states.insert(states.end(), {number, make_list(arena, ValueKind::kDict, kept)});
  }
  const Value* const inner = torch_optimizer(rank);
  Value* const rest = states.empty() ? nullptr : make_list(arena, ValueKind::kDict, states);
  if (inner == &outer || inner == nullptr) return with_value(arena, outer, "state", rest);
  Value* const torch = with_value(arena, *inner, "state", rest);
  return with_value(arena, *with_value(arena, outer, kMastersKey, nullptr), "optimizer", torch);
}

// The tensors in the flat buffers of the distributed optimizer, by the names of their parameters.

/// A parameter's position in the buffers of the ranks of its stage.
struct FlatParameter {
  std::string_view name;  ///< The name in the ranks' files.
  Dims shape;
  std::size_t optimizer = 0;
  std::int64_t begin = 0;
};

class FlatMerge {
 public:
  FlatMerge(TensorAssembler& wholes, const Catalog& catalog, const Save& save)
      : wholes_(wholes), catalog_(catalog), arena_(*catalog.arena), save_(save) {}

  bool run() {
    if (save_.optimizers.empty()) return false;
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) check_ranks_of(stage);
    std::vector<std::vector<FlatParameter>> laid_out;
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
        laid_out.emplace_back();
        if (lay_out(stage, chunk, laid_out.back())) continue;
        check_stages();
        return false;
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

  /// By optimizer and chunk. An optimizer that a different rank saves has none.
  using Lengths = std::vector<std::vector<std::int64_t>>;

  /// The lengths of a rank's buffers.
  Lengths lengths_of(std::size_t rank) const {
    Lengths lengths;
    for (const std::vector<FlatStates>& buffers : save_.optimizers[rank].optimizers) {
      lengths.emplace_back();
      for (const FlatStates& states : buffers) lengths.back().push_back(states.entries().begin()->value.shape[0]);
    }
    return lengths;
  }

  /// The lengths that the parameters of a stage give, if all are in the buffers.
  Lengths lengths_by_model(std::int64_t stage, std::size_t optimizers) const {
    Lengths lengths(optimizers);
    for (std::size_t optimizer = 0; optimizer < optimizers; ++optimizer) {
      for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
        std::vector<FlatParameter> parameters;
        const std::vector<std::int64_t> numels = add_parameters(stage, chunk, optimizers, optimizer, parameters);
        lengths[optimizer].push_back(lay_flat(numels, {}, FlatRule::mcore_saved()).part_size());
      }
    }
    return lengths;
  }

  /// Whether lengths are equal, except for buffers that one of the ranks does not save.
  static bool are_alike(const Lengths& a, const Lengths& b) {
    return std::ranges::equal(
        a, b, [](const auto& one, const auto& other) { return one.empty() || other.empty() || one == other; });
  }

  /// Checks that the ranks of a stage have equally long buffers, because they have equally large parameters.
  /// \throws Error kCorruption  a file is of a different stage, or has a different content
  void check_ranks_of(std::int64_t stage) const {
    const std::size_t first = save_.first_rank(stage), end = save_.first_rank(stage + 1);
    const Lengths lengths = lengths_of(first);
    for (std::size_t rank = first + 1; rank < end; ++rank) {
      const Lengths others = lengths_of(rank);
      if (are_alike(lengths, others)) continue;
      const bool fits = !others.empty() && are_alike(others, lengths_by_model(stage, others.size()));
      const Lengths &found = fits ? lengths : others, &expected = fits ? others : lengths;
      throw wrong_file(fits ? first : rank, FindingKind::kShapeMismatch)
          .because(fmt::format("the buffers have different lengths on the ranks of pipeline stage {}", stage))
          .expected(fmt::format("{}", fmt::join(expected, ", ")))
          .found(found.empty() ? std::string("none") : fmt::format("{}", fmt::join(found, ", ")));
    }
  }

  /// Checks that files of stages were not exchanged. Lengths may differ from those by the model for other reasons, such
  /// as frozen parameters; but then they are not those of the other stages in a different order.
  /// \throws Error kCorruption  they are
  void check_stages() const {
    std::vector<Lengths> found, expected;
    std::int64_t first = -1;
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      const Lengths here = lengths_of(save_.first_rank(stage)), wanted = lengths_by_model(stage, here.size());
      if (here == wanted) continue;
      if (first < 0) first = stage;
      found.push_back(here);
      expected.push_back(wanted);
    }
    std::ranges::sort(found);
    std::ranges::sort(expected);
    if (first < 0 || found != expected) return;
    const std::size_t rank = save_.first_rank(first);
    const Lengths here = lengths_of(rank);
    throw wrong_file(rank, FindingKind::kRankMismatch)
        .because("its buffers have the length of a different pipeline stage's")
        .expected(fmt::format("{}", fmt::join(lengths_by_model(first, here.size()), ", ")))
        .found(fmt::format("{}", fmt::join(here, ", ")));
  }

  Error wrong_file(std::size_t rank, FindingKind kind) const {
    Error error(ErrorCode::kCorruption, "the optimizer's states are not those of the rank's parameters");
    return error.in_file(catalog_.files[save_.optimizers[rank].file].path).of_kind(kind);
  }

  /// Appends the parameters of one optimizer to `all`. If there are two optimizers, the second one has the experts,
  /// which have fewer data-parallel ranks. \returns their sizes
  std::vector<std::int64_t> add_parameters(std::int64_t stage, std::size_t chunk, std::size_t optimizers,
                                           std::size_t optimizer, std::vector<FlatParameter>& all) const {
    std::vector<std::int64_t> numels;
    for (const auto& [name, view] : save_.ranks_of(stage).front().chunks[chunk].tensors.entries()) {
      const bool is_experts = meaning_of(name, false).experts != Meaning::Experts::kNone;
      if (!is_parameter(name) || (optimizers == 2 && is_experts != (optimizer == 1))) continue;
      all.push_back({name, view.shape, optimizer});
      numels.push_back(checked_numel(view.shape));
    }
    return numels;
  }

  /// Finds the positions of a chunk's parameters; false if they are not certain.
  bool lay_out(std::int64_t stage, std::size_t chunk, std::vector<FlatParameter>& all) const {
    const std::size_t optimizers = save_.optimizers[save_.first_rank(stage)].optimizers.size();
    if (optimizers == 0 || optimizers > 2) return false;
    for (std::size_t optimizer = 0; optimizer < optimizers; ++optimizer) {
      const std::size_t first = all.size();
      const std::vector<std::int64_t> numels = add_parameters(stage, chunk, optimizers, optimizer, all);
      const std::optional<std::int64_t> elements = elements_of(stage, optimizers, optimizer, chunk);
      const auto begins = elements ? begins_in_saved_buffer(numels, *elements) : std::nullopt;
      if (!begins) return false;
      for (std::size_t i = 0; i < begins->size(); ++i) all[first + i].begin = (*begins)[i];
    }
    return true;
  }

  /// Ranks with different experts are data-parallel ranks of the other parameters, whose buffers only the first saves.
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
    wholes_.add_state(state == "param" ? kMasters : state, meaning, rank, stored,
                      part_of(parameter.shape, row_major_strides(arena_, parameter.shape), first + parameter.begin));
  }

  TensorAssembler& wholes_;
  const Catalog& catalog_;
  Arena& arena_;
  const Save& save_;
};

/// Adds master weights and moments of all parameters to `wholes` as
/// optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.NAME.
/// \returns false, without changes, if the save has no such buffers, or if the positions of parameters in them are not
///   certain (see begins_in_saved_buffer).
/// \throws Error kCorruption  lengths show that a file is another rank's.
bool add_flat_states(TensorAssembler& wholes, const Catalog& catalog, const Save& save) {
  return FlatMerge(wholes, catalog, save).run();
}

/// Merges all ranks of a save.
class Merge {
 public:
  Merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save)
      : catalog_(catalog), arena_(*catalog.arena), files_(files), save_(save), wholes_(catalog, files, save) {}

  void run() {
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      for (std::size_t chunk = 0; chunk < save_.ranks.front().chunks.size(); ++chunk) add_chunk(stage, chunk);
    }
    add_optimizer();
    wholes_.finish();
    add_objects();
    warn_of_hidden();
  }

 private:
  void add_chunk(std::int64_t stage, std::size_t chunk) {
    const ChunkStates& first = save_.ranks_of(stage).front().chunks[chunk];
    const auto chunk_number = static_cast<std::int64_t>(chunk);
    for (const auto& [name, ignored] : first.tensors.entries()) {
      const Meaning meaning = wholes_.meaning(name, stage, chunk_number);
      const std::string_view whole = arena_.copy(meaning.name);
      for (std::size_t rank = save_.first_rank(stage); rank < save_.first_rank(stage + 1); ++rank) {
        const RankStates& states = save_.ranks[rank];
        const TensorView& view = *states.chunks[chunk].tensors.find(name);
        wholes_.add(whole, {}, meaning, rank, wholes_.store(rank, states.file, view),
                    part_of(view.shape, view.strides, view.first));
      }
    }
    for (const auto& [name, value] : first.objects.entries()) {
      arena_.charge(Charge::kEntries);
      catalog_.objects.push_back({arena_.copy(wholes_.counted(name, stage, chunk_number)), {}, value, -1});
    }
  }

  void add_optimizer() {
    if (!save_.optimizers.empty() && !add_flat_states(wholes_, catalog_, save_)) {
      catalog_.warnings.push_back(fmt::format(
          "skipped the states in {}: their lengths do not show where parameters are stored", kOptimizerFile));
    }
    if (has_indexed_states(save_.ranks.front()) && !add_indexed_states(wholes_, arena_, save_)) {
      catalog_.warnings.emplace_back("skipped the optimizer's states: their parameters are unknown");
    }
  }

  /// Adds the content of rank 0's file other than its part of the model. Random states differ between ranks.
  void add_objects() {
    const RankStates& first = save_.ranks.front();
    HashSet<std::string> chunks;
    for (std::int64_t i = 0; i < std::ssize(first.chunks); ++i) chunks.insert(chunk_key(i, std::ssize(first.chunks)));
    bool has_random = false;
    Value* const rest = change_items(arena_, *first.root, [&](const Value& key, Value* value) -> Value* {
      const std::string_view name = text_or_empty(key);
      has_random = has_random || name == "rng_state";
      if (chunks.contains(name) || name == "rng_state") return nullptr;
      if (name == "args") return &arguments_of(*first.root);
      return name == "optimizer" && has_indexed_states(first) ? without_indexed_states(arena_, first) : value;
    });
    if (has_random) catalog_.warnings.emplace_back("skipped the ranks' random states (rng_state)");
    torch_save::TreeLoader(catalog_, files_, first.file).load(*rest);
  }

  void warn_of_hidden() {
    std::int64_t hidden = 0;
    for (const RankStates& rank : save_.ranks) {
      for (const ChunkStates& chunk : rank.chunks) hidden += chunk.hidden;
    }
    if (hidden == 0) return;
    catalog_.warnings.push_back(
        fmt::format("skipped extra states of modules (_extra_state): {}", plural(hidden, "tensor")));
  }

  Catalog& catalog_;
  Arena& arena_;
  torch_save::SavedFiles& files_;
  const Save& save_;
  TensorAssembler wholes_;
};

}  // namespace

void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save) { Merge(catalog, files, save).run(); }

}  // namespace shard::megatron
