#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/deepspeed/flat_layout.h"
#include "formats/deepspeed/format.h"
#include "formats/deepspeed/model_files.h"
#include "formats/deepspeed/save_reader.h"
#include "formats/deepspeed/state_trees.h"
#include "formats/deepspeed/tree_files.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

/// The properties of a state's buffers in the save, which the new ones get.
struct BufferKind {
  DType dtype{};
  std::uint16_t location = 0;
  friend bool operator==(const BufferKind&, const BufferKind&) = default;
};

/// The data for the trees of a model-parallel rank's files, which share it.
struct Respreading {
  WholeSave whole;
  NewGroups groups;
  std::int64_t ranks = 0;
  std::vector<RankParts> parts;  ///< By rank.

  NewSpread spread() const { return {whole.save, groups, ranks}; }
};

/// The files of one model-parallel rank, starting at file `first` of the target.
class Respread {
 public:
  Respread(const WholeSave& whole, std::int64_t ranks, TreeFiles& files, std::uint32_t first)
      : save_(whole.save),
        files_(files),
        first_(first),
        all_(std::make_shared<Respreading>(Respreading{whole, {}, ranks, {}})),
        models_(all_->whole, ranks, first) {
    all_->parts.resize(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < all_->parts.size(); ++rank) {
      all_->parts[rank].rank = static_cast<std::int64_t>(rank);
    }
  }

  std::vector<TreeFile> make() {
    if (!save_.optimizers.empty()) {
      // Checks the layout again, and returns the rules of the slices.
      Catalog charged = source_catalog();
      const std::vector<ParamGroup> old = groups_of(save_);
      all_->groups = regroup(save_, old, all_->ranks);
      rules_ = lay_out(charged, old, save_).rules;
      for (std::size_t g = 0; g < all_->groups.groups.size(); ++g) {
        add_state({}, g);
        for (const FlatState& state : save_.optimizers.front().states) add_state(state.name, g);
      }
    }
    models_.add_frozen(files_, all_->parts);
    return name_files();
  }

 private:
  // Buffers

  std::optional<BufferKind> kind_in(std::string_view state, std::size_t old_group) const {
    for (const OptimizerStates& rank : save_.optimizers) {
      const TensorView* view = nullptr;
      const auto found = std::ranges::find(rank.states, state, &FlatState::name);
      if (state.empty()) {
        view = &rank.masters[old_group];
      } else if (found != rank.states.end() && found->groups[old_group]) {
        view = &*found->groups[old_group];
      }
      if (view == nullptr) continue;
      const auto& locations = all_->whole.catalog.locations;
      const auto location = std::ranges::find(locations, view->location) - locations.begin();
      const bool is_known = location < std::ssize(locations);
      return BufferKind{view->dtype, static_cast<std::uint16_t>(is_known ? location : 0)};
    }
    return std::nullopt;
  }

  /// The properties of the group's buffers; nothing if no rank has that state of the group.
  std::optional<BufferKind> kind_of(std::string_view state, const NewGroup& group) const {
    const std::optional<BufferKind> first = kind_in(state, group.from.front());
    for (const std::size_t from : group.from) {
      if (kind_in(state, from) == first) continue;
      throw Error(ErrorCode::kUnsupported, "cannot write the save for a different number of ranks")
          .because(fmt::format("sub-groups {} and {} would be joined, but their '{}' differ", group.from.front(), from,
                               state.empty() ? "fp32" : state));
    }
    return first;
  }

  void add_state(std::string_view state, std::size_t g) {
    const NewGroup& group = all_->groups.groups[g];
    const std::optional<BufferKind> kind = kind_of(state, group);
    for (RankParts& parts : all_->parts) {
      if (!state.empty()) parts.states[state].resize(all_->groups.groups.size(), -1);
    }
    if (!kind) return;
    save_.is_parted() ? add_parts(state, g, *kind) : add_slices(state, g, *kind);
  }

  std::uint32_t add_buffer(std::string_view state, std::size_t g, std::int64_t rank, std::int64_t elements,
                           const BufferKind& kind) {
    const auto r = static_cast<std::size_t>(rank);
    const std::uint32_t row = files_.add_row(first_ + static_cast<std::uint32_t>(models_.count() + r),
                                             all_->whole.number_of(rank), kind.dtype, elements, kind.location);
    RankParts& parts = all_->parts[r];
    if (state.empty()) {
      parts.masters.push_back(files_.number_of(row));
    } else {
      parts.states[state][g] = files_.number_of(row);
    }
    return row;
  }

  std::uint32_t tensor_of(const ParamShape& param, std::string_view state) const {
    return all_->whole.flat_tensor(name_of_state(param.name, state));
  }

  /// Whether buffers end without padding: those of ZeRO's master weights, and of states in the form of a list.
  bool is_lean(std::string_view state) const {
    if (!save_.optimizers.front().stage) return false;
    if (state.empty()) return true;
    const Value* const zero = find_key(*save_.optimizers.front().root, "optimizer_state_dict");
    return !is_mapping(*find_key(*zero, "base_optimizer_state"));
  }

  void add_slices(std::string_view state, std::size_t g, const BufferKind& kind) {
    const ParamGroup& params = all_->groups.groups[g].params;
    FlatRule rule = rules_[g];
    rule.end = rule.end / rule.parts * all_->ranks;
    rule.parts = all_->ranks;
    const FlatLayout sliced = lay_flat(numels_of(params), {}, rule);
    std::vector<std::uint32_t> rows;
    for (std::int64_t rank = 0; rank < all_->ranks; ++rank) {
      const std::int64_t real = sliced.used_by(rank), padded = sliced.part_size();
      rows.push_back(add_buffer(state, g, rank, is_lean(state) ? real : padded, kind));
      if (state.empty()) all_->parts[static_cast<std::size_t>(rank)].paddings.push_back(padded - real);
      if (state.empty()) all_->parts[static_cast<std::size_t>(rank)].fragments.emplace_back();
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      add_in_rows(files_, tensor_of(params[i], state), rows, sliced.tensors[i]);
      if (!state.empty()) continue;
      for (const FlatPiece& piece : sliced.tensors[i]) {
        all_->parts[static_cast<std::size_t>(piece.part)].fragments[g].push_back(
            {params[i].name, piece.count, piece.first});
      }
    }
  }

  void add_parts(std::string_view state, std::size_t g, const BufferKind& kind) {
    const ParamGroup& params = all_->groups.groups[g].params;
    std::int64_t sum = 0;
    for (const ParamShape& param : params) sum = checked_add(sum, parted_size(checked_numel(param.shape), all_->ranks));
    std::vector<std::uint32_t> rows;
    for (std::int64_t rank = 0; rank < all_->ranks; ++rank) rows.push_back(add_buffer(state, g, rank, sum, kind));
    std::int64_t offset = 0;
    for (const ParamShape& param : params) {
      const std::int64_t numel = checked_numel(param.shape);
      add_in_rows(files_, tensor_of(param, state), rows, lay_parted(numel, all_->ranks, offset));
      offset += parted_size(numel, all_->ranks);
    }
  }

  // Files

  std::vector<TreeFile> name_files() const {
    std::vector<TreeFile> files;
    for (std::size_t rank = 0; rank < models_.count(); ++rank) {
      files.push_back({models_.name(rank), number_of(rank), [all = all_, rank](Arena& arena) {
                         return model_tree(arena, all->spread(), all->parts[rank]);
                       }});
    }
    for (std::size_t rank = 0; rank < all_->parts.size() && !save_.optimizers.empty(); ++rank) {
      const std::string name = name_beside(all_->whole.folder.optimizers.front(), static_cast<std::int64_t>(rank));
      files.push_back({name, number_of(rank), [all = all_, rank](Arena& arena) {
                         return optimizer_tree(arena, all->spread(), all->parts[rank]);
                       }});
    }
    return files;
  }

  int number_of(std::size_t rank) const { return all_->whole.number_of(static_cast<std::int64_t>(rank)); }

  const Save& save_;
  TreeFiles& files_;
  std::uint32_t first_;
  std::shared_ptr<Respreading> all_;
  ModelFiles models_;
  std::vector<FlatRule> rules_;  ///< By group of the save; empty in stage 3.
};

}  // namespace

Rewrite repartition(const Source& source, const OpenOptions& open, const RewriteOptions& options) {
  auto reader = std::make_unique<SaveReader>(source, open, Listing::kWhole);
  const std::vector<WholeSave> wholes = reader->wholes();
  const std::int64_t model_ranks = std::ssize(wholes);
  const std::int64_t all = options.ranks.value_or(reader->catalog().world_size.value_or(model_ranks));
  if (all % model_ranks != 0) {
    throw Error(ErrorCode::kInvalidArgument, "the number of ranks must be a multiple of the model-parallel ranks")
        .expected(fmt::format("a multiple of {}", model_ranks))
        .found(all);
  }
  TreeFiles target(reader->catalog(), "deepspeed");
  target.target.world_size = all;
  std::vector<TreeFile> files;
  for (const WholeSave& whole : wholes) {
    for (TreeFile& file : Respread(whole, all / model_ranks, target, static_cast<std::uint32_t>(files.size())).make()) {
      file.path = join_path(reader->tag(), file.path);
      files.push_back(std::move(file));
    }
  }
  std::unique_ptr<Writer> writer = target.finish(std::move(files), {{"latest", reader->tag()}});
  return {std::move(reader), std::move(target.target), std::move(writer)};
}

}  // namespace shard::deepspeed
