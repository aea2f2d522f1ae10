#include "formats/deepspeed/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "formats/deepspeed/flat_layout.h"
#include "formats/deepspeed/groups.h"
#include "formats/deepspeed/join.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/load_tree.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/value_equality.h"

namespace shard::deepspeed {

namespace {

/// A tensor in one rank's file.
struct HeldView {
  std::uint32_t file = 0;
  std::int64_t rank = 0;  ///< -1 if it belongs to no rank.
  TensorView view;
};

/// Adds tensors that are distributed over several files to a catalog. Names must stay valid.
class TensorAdder {
 public:
  TensorAdder(Catalog& catalog, torch_save::SavedFiles& files) : catalog_(catalog), builder_(catalog), files_(files) {}

  /// The indices of tensors by name, before the catalog is sorted.
  const HashMap<std::string_view, std::uint32_t>& by_name() const { return by_name_; }

  std::uint32_t add_stored(const HeldView& held) {
    StoredTensor stored = torch_save::stored_tensor(held.view, files_.storage_of(held.file, held.view));
    stored.rank = static_cast<std::int32_t>(held.rank);
    return builder_.add_stored(stored);
  }

  /// Adds a tensor that is whole in each of `copies`.
  void add_whole(std::string_view name, Path path, std::span<const HeldView> copies) {
    const TensorView& first = copies.front().view;
    begin(name, path, first.dtype, first.shape);
    for (const HeldView& held : copies) {
      if (held.view.dtype != first.dtype || held.view.shape != first.shape) {
        throw Error(ErrorCode::kCorruption, fmt::format("ranks store '{}' with different shapes or dtypes", name))
            .in_file(catalog_.files[held.file].path)
            .of_tensor(name)
            .of_kind(FindingKind::kReplicaMismatch);
      }
      builder_.add_whole(add_stored(held));
    }
  }

  /// Adds a tensor of that shape whose elements are those of a row. \pre their numbers are equal
  void add_row(std::string_view name, Path path, Dims shape, const HeldView& row) {
    begin(name, path, row.view.dtype, shape);
    builder_.add_run(add_stored(row), 0, checked_numel(shape), row.view.first);
  }

  /// Adds a tensor whose pieces are in buffers. `buffers` are by rank; missing ones are kNoIndex.
  void add_flat(std::string_view name, Path path, Dims shape, std::span<const FlatPiece> pieces,
                std::span<const std::uint32_t> buffers, DType dtype) {
    begin(name, path, dtype, shape);
    if (pieces.empty()) {
      const std::uint32_t any = *std::ranges::find_if(buffers, [](std::uint32_t each) { return each != kNoIndex; });
      builder_.add_run(any, 0, 0, catalog_.stored[any].first);
    }
    for (const FlatPiece& piece : pieces) {
      const std::uint32_t buffer = buffers[static_cast<std::size_t>(piece.part)];
      if (buffer == kNoIndex) {
        throw Error(ErrorCode::kCorruption, fmt::format("rank {} lacks its part of '{}'", piece.part, name))
            .of_tensor(name)
            .of_rank(static_cast<int>(piece.part))
            .of_kind(FindingKind::kGap);
      }
      builder_.add_run(buffer, piece.begin, piece.count, catalog_.stored[buffer].first + piece.first);
    }
  }

  void add_alias(std::string_view name, std::uint32_t original) {
    const Tensor& tensor = catalog_.tensors[original];
    begin(name, {}, tensor.dtype, tensor.shape);
    builder_.add_alias_chunks(original);
  }

 private:
  void begin(std::string_view name, Path path, DType dtype, Dims shape) {
    if (by_name_.contains(name)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the save contains '{}' twice", name))
          .of_tensor(name)
          .of_kind(FindingKind::kDuplicateName);
    }
    by_name_[name] = builder_.begin(name, path, dtype, shape);
  }

  Catalog& catalog_;
  CatalogBuilder builder_;
  torch_save::SavedFiles& files_;
  HashMap<std::string_view, std::uint32_t> by_name_;
};

class Merge {
 public:
  Merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save, bool from_module)
      : catalog_(catalog),
        arena_(*catalog.arena),
        files_(files),
        save_(save),
        from_module_(from_module),
        out_(catalog, files) {}

  void add_tensors() {
    find_parts();
    if (save_.universal) add_universal();
    if (!save_.optimizers.empty()) add_parameters();
    add_frozen();
    add_module();
    add_parts();
    add_shared();
  }

  /// Adds the tensors that have parts on several data-parallel ranks.
  void add_spread() {
    if (!save_.optimizers.empty()) add_parameters();
    if (save_.is_parted()) add_frozen();
  }

  /// Adds the trees of the files, with `prefix` before each name.
  void add_trees(std::string_view prefix, std::vector<Value*>& trees) {
    const ModelStates& model = save_.models.front();
    load_tree(fmt::format("{}model_states", prefix), model.file, *model.root, trees);
    if (save_.optimizers.empty()) return;
    const OptimizerStates& first = save_.optimizers.front();
    warn_of_differences();
    load_tree(fmt::format("{}optim_states", prefix), first.file, *first.root, trees);
  }

  /// Adds the rest of the model states and of rank 0's optimizer as objects.
  void add_objects() {
    const ModelStates& model = save_.models.front();
    load(model.file, *change_items(arena_, *model.root, [&](const Value& key, Value* value) -> Value* {
           const std::string_view name = text_or_empty(key);
           const bool is_of_ranks = !save_.optimizers.empty() || !save_.rank_optimizers.empty();
           const bool is_elsewhere = name == "optimizer" && (save_.universal || is_of_ranks);
           return is_elsewhere || std::ranges::find(kSpread, name) != kSpread.end() ? nullptr : value;
         }));
    if (model.module_rest != nullptr) load(model.file, *model.module_rest);
    if (save_.universal) return load_optimizer(save_.universal->file, save_.universal->rest);
    if (save_.optimizers.empty()) return;
    const OptimizerStates& first = save_.optimizers.front();
    warn_of_differences();
    load_optimizer(first.file, first.rest);
  }

  /// Adds the objects that each model-parallel rank has: those of experts and layers, and optimizers without ZeRO.
  void add_rank_objects(std::size_t model_rank) {
    for (const ModelStates& part : save_.parts) {
      if (part.module_rest != nullptr) load(part.file, *part.module_rest);
    }
    const std::string rank = fmt::format("mp_rank_{:02}", model_rank);
    for (const RankOptimizer& optimizer : save_.rank_optimizers) {
      const std::string both = fmt::format("{}{}", model_rank == 0 ? "" : rank + "_", optimizer.rank);
      if (optimizer.states != nullptr) load_rank_optimizer(optimizer.file, both, *optimizer.states);
    }
    if (model_rank == 0 || !save_.optimizers.empty() || !save_.rank_optimizers.empty() || save_.universal) return;
    const ModelStates& model = save_.models.front();
    if (Value* const states = find_value(*model.root, "optimizer")) load_rank_optimizer(model.file, rank, *states);
  }

 private:
  // Parameters

  /// Lists the tensors in the files of experts and layers. Shared ones are in several.
  void find_parts() {
    for (const ModelStates& part : save_.parts) {
      for (const auto& [name, view] : part.module.entries()) parts_[name].push_back({part.file, -1, view});
    }
  }

  void add_parameters() {
    const std::vector<FlatParam> params = lay_out(catalog_, groups_of(save_), save_).params;
    if (from_module_) {
      for (const FlatParam& param : params) add_copy(param.name, param.shape);
    } else {
      add_state({}, params,
                [](const OptimizerStates& rank, std::size_t group) { return std::optional(rank.masters[group]); });
    }
    for (const FlatState& state : save_.optimizers.front().states) {
      add_state(state.name, params, [&state](const OptimizerStates& rank, std::size_t group) {
        const auto found = std::ranges::find(rank.states, state.name, &FlatState::name);
        return found == rank.states.end() ? std::nullopt : found->groups[group];
      });
    }
  }

  /// For stage 3: the files contain rows, and only the model's states record their shapes.
  HashMap<std::string_view, Dims> shapes_of_rows() const {
    HashMap<std::string_view, Dims> shapes;
    if (!save_.models.front().groups) return shapes;
    for (const ParamGroup& group : *save_.models.front().groups) {
      for (const ParamShape& param : group) shapes[param.name] = param.shape;
    }
    return shapes;
  }

  void add_universal() {
    const HashMap<std::string_view, Dims> shapes = shapes_of_rows();
    for (const UniversalFile& file : save_.universal->files) {
      const std::string_view state = file.name == kWeightFile ? std::string_view() : file.name;
      const auto [name, path] = name_of(state, file.param);
      if (!file.view || file.number != nullptr) {
        catalog_.objects.push_back({name, path, file.number, -1});
        continue;
      }
      const Dims* const listed = shapes.find(file.param);
      const bool is_short = listed != nullptr && file.view->shape.size() == 1 && !save_.universal->is_joined;
      const bool is_row = save_.universal->is_parted || is_short;
      if (is_row && listed == nullptr) throw no_shape(file);
      const Dims shape = is_row ? *listed : file.view->shape;
      if (checked_numel(shape) != checked_numel(file.view->shape)) throw no_shape(file).expected(to_string(shape));
      if (from_module_ && state.empty()) {
        add_copy(file.param, shape);
      } else if (!is_row) {
        out_.add_whole(name, path, std::array{HeldView{file.file, -1, *file.view}});
      } else {
        out_.add_row(name, path, shape, {file.file, -1, *file.view});
      }
    }
  }

  Error no_shape(const UniversalFile& file) const {
    Error error(ErrorCode::kCorruption, fmt::format("the model's states do not contain the shape of '{}'", file.param));
    error.in_file(catalog_.files[file.file].path).of_tensor(file.param).of_kind(FindingKind::kShapeMismatch);
    return error.found(to_string(file.view->shape));
  }

  /// The module's own copy of a parameter.
  void add_copy(std::string_view name, Dims shape) {
    const ModelStates& model = save_.models.front();
    if (save_.is_parted()) {
      throw Error(ErrorCode::kUnsupported, "cannot read 16-bit weights: a stage 3 save does not contain them");
    }
    std::vector<HeldView> copies;
    if (const TensorView* const view = model.module.find(name)) copies.push_back({model.file, 0, *view});
    if (const std::vector<HeldView>* const parts = parts_.find(name)) {
      copies.insert(copies.end(), parts->begin(), parts->end());
    }
    if (copies.empty() || copies.front().view.shape != shape) {
      throw Error(ErrorCode::kCorruption, fmt::format("the module does not contain '{}' in its shape", name))
          .in_file(catalog_.files[model.file].path)
          .of_tensor(name)
          .of_kind(FindingKind::kShapeMismatch)
          .expected(to_string(shape));
    }
    out_.add_whole(name, {}, copies);
  }

  /// Adds one state of all parameters that have it, or the parameters themselves if the name is empty.
  template <class BufferOf>
  void add_state(std::string_view state, const std::vector<FlatParam>& params, const BufferOf& buffer_of) {
    std::vector<std::uint32_t> buffers;
    DType dtype{};
    std::size_t group = SIZE_MAX;
    for (const FlatParam& param : params) {
      if (param.group != group) {
        group = param.group;
        buffers = add_buffers(state, group, buffer_of, dtype);
      }
      const bool is_held = std::ranges::any_of(buffers, [](std::uint32_t each) { return each != kNoIndex; });
      if (!is_held) continue;  // A group without any update has no states.
      const auto [name, path] = name_of(state, param.name);
      out_.add_flat(name, path, param.shape, param.pieces, buffers, dtype);
    }
  }

  template <class BufferOf>
  std::vector<std::uint32_t> add_buffers(std::string_view state, std::size_t group, const BufferOf& buffer_of,
                                         DType& dtype) {
    std::vector<std::uint32_t> buffers;
    std::optional<DType> first;
    for (const OptimizerStates& rank : save_.optimizers) {
      const std::optional<TensorView> view = buffer_of(rank, group);
      buffers.push_back(view ? out_.add_stored({rank.file, rank.ranks.data_rank, *view}) : kNoIndex);
      if (!view) continue;
      if (first.value_or(view->dtype) != view->dtype) {
        throw Error(ErrorCode::kCorruption,
                    fmt::format("ranks store '{}' with different dtypes", state.empty() ? "fp32" : state))
            .in_file(catalog_.files[rank.file].path)
            .of_kind(FindingKind::kDtypeMismatch)
            .expected(dtype_name(*first))
            .found(dtype_name(view->dtype));
      }
      first = view->dtype;
    }
    dtype = first.value_or(DType::kFloat32);
    return buffers;
  }

  struct Named {
    std::string_view name;
    Path path;
  };
  Named name_of(std::string_view state, std::string_view param) {
    if (state.empty()) return {param, {}};
    const std::string name = name_of_state(param, state);
    const std::span<PathPart> container = arena_.array<PathPart>(3);
    container[0] = PathPart::of_key("optimizer");
    container[1] = PathPart::of_key("state");
    container[2] = PathPart::of_key(param);
    return {arena_.copy(name), Path(container, PathPart::of_key(state))};
  }

  // Tensors that no optimizer updates

  /// Charges a scan of each rank's states, because many names in one file with many small files make more work than
  /// their bytes.
  void charge_look() { arena_.charge(Charge::kVisits, std::ssize(save_.models)); }

  void add_frozen() {
    for (const auto& [name, shape] : save_.models.front().frozen_shapes.entries()) {
      std::vector<HeldView> parts;
      charge_look();
      for (const ModelStates& model : save_.models) {
        if (const TensorView* part = model.frozen_parts.find(name)) {
          parts.push_back({model.file, model.ranks.data_rank, *part});
        }
      }
      if (parts.empty() || (save_.is_parted() && parts.size() != save_.models.size())) {
        throw Error(ErrorCode::kCorruption, fmt::format("ranks lack the frozen parameter '{}'", name))
            .of_tensor(name)
            .of_kind(FindingKind::kGap);
      }
      save_.is_parted() ? add_frozen_parts(name, shape, parts) : out_.add_whole(name, {}, std::span(parts).first(1));
    }
  }

  void add_frozen_parts(std::string_view name, Dims shape, std::span<const HeldView> parts) {
    const std::int64_t numel = checked_numel(shape), size = parted_size(numel, std::ssize(parts));
    std::vector<std::uint32_t> buffers;
    for (const HeldView& part : parts) {
      if (part.view.shape.size() != 1 || part.view.shape[0] != size || part.view.dtype != parts.front().view.dtype) {
        throw Error(ErrorCode::kCorruption, fmt::format("a part of '{}' does not have its size", name))
            .in_file(catalog_.files[part.file].path)
            .of_tensor(name)
            .of_kind(FindingKind::kShapeMismatch)
            .expected(size)
            .found(to_string(part.view.shape));
      }
      buffers.push_back(out_.add_stored(part));
    }
    out_.add_flat(name, {}, shape, lay_parted(numel, std::ssize(parts)), buffers, parts.front().view.dtype);
  }

  /// Adds the tensors of experts and layers that no optimizer updates.
  void add_parts() {
    for (const auto& [name, copies] : parts_.entries()) {
      if (!out_.by_name().contains(name)) out_.add_whole(name, {}, copies);
    }
  }

  /// Adds buffers, and the frozen parameters of stage 1, which only the module contains. Without an optimizer, adds the
  /// whole module.
  void add_module() {
    const ModelStates& model = save_.models.front();
    for (const auto& [name, view] : model.module.entries()) {
      if (out_.by_name().contains(name) || model.shared.contains(name)) continue;
      std::vector<HeldView> copies;
      charge_look();
      for (const ModelStates& each : save_.models) {
        if (const TensorView* copy = each.module.find(name)) {
          copies.push_back({each.file, each.ranks.data_rank, *copy});
        }
      }
      if (save_.is_parted() && checked_numel(view.shape) == 0 && !model.buffers.contains(name)) {
        throw Error(ErrorCode::kCorruption, fmt::format("the elements of '{}' are in none of the files", name))
            .in_file(catalog_.files[model.file].path)
            .of_tensor(name)
            .of_kind(FindingKind::kGap);
      }
      out_.add_whole(name, {}, copies);
    }
  }

  void add_shared() {
    for (const auto& [alias, real] : save_.models.front().shared.entries()) {
      const std::uint32_t* const found = out_.by_name().find(real);
      if (found == nullptr) {
        throw Error(ErrorCode::kCorruption, fmt::format("'{}' is shared with '{}', which is missing", alias, real))
            .of_tensor(alias)
            .of_kind(FindingKind::kIndexMismatch);
      }
      out_.add_alias(alias, *found);
    }
  }

  // Objects

  static constexpr std::array<std::string_view, 8> kSpread{
      "module",        "buffer_names",           "param_shapes",  "frozen_param_shapes",
      "shared_params", "frozen_param_fragments", "dp_world_size", "mp_world_size"};

  void load_optimizer(std::uint32_t file, Value* rest) {
    Value* const pair[] = {make_string(arena_, "optimizer"), rest};
    load(file, *make_list(arena_, ValueKind::kDict, pair));
  }

  void load_rank_optimizer(std::uint32_t file, std::string_view rank, Value& states) {
    Value* const pair[] = {make_string(arena_, rank), &states};
    load_optimizer(file, make_list(arena_, ValueKind::kDict, pair));
  }

  void load(std::uint32_t file, Value& root) {
    if (!root.items().empty()) torch_save::TreeLoader(catalog_, files_, file).load(root);
  }

  void load_tree(std::string_view name, std::uint32_t file, Value& tree, std::vector<Value*>& trees) {
    Value* const pair[] = {make_string(arena_, name), &tree};
    load(file, *make_list(arena_, ValueKind::kDict, pair));
    trees.push_back(&tree);
  }

  void warn_of_differences() {
    const OptimizerStates& first = save_.optimizers.front();
    ValueEquality equality({.budget = arena_.budget().get()});
    for (const OptimizerStates& rank : save_.optimizers) {
      if (equality.is_equal(*first.rest, *rank.rest)) continue;
      catalog_.warnings.push_back(
          fmt::format("{}: objects of the optimizer differ from those of rank {}, which are read",
                      catalog_.files[rank.file].path, first.ranks.data_rank));
    }
  }

  Catalog& catalog_;
  Arena& arena_;
  torch_save::SavedFiles& files_;
  const Save& save_;
  bool from_module_;
  TensorAdder out_;
  HashMap<std::string_view, std::vector<HeldView>> parts_;  ///< The tensors in `save_.parts`.
};

std::string prefix_of(std::size_t model_rank) {
  return model_rank == 0 ? std::string() : fmt::format("mp_rank_{:02}.", model_rank);
}

/// Puts the prefix before the names of the tensors from `first` on.
void add_prefix(Catalog& catalog, std::size_t first, const std::string& prefix) {
  for (Tensor& tensor : std::span(catalog.tensors).subspan(first)) {
    tensor.name = catalog.arena->copy(prefix + std::string(tensor.name));
    tensor.path = {};
  }
}

}  // namespace

std::string name_of_state(std::string_view param, std::string_view state) {
  return state.empty() ? std::string(param) : fmt::format("optimizer.state.{}.{}", param, state);
}

std::vector<FlatTensors> merge_whole(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves,
                                     bool is_joined) {
  std::vector<FlatTensors> flat;
  std::vector<Value*> trees;
  const auto list_from = [&](std::size_t first) {
    FlatTensors& listed = flat.emplace_back();
    for (std::size_t i = first; i < catalog.tensors.size(); ++i) {
      trees.push_back(make_tensor(*catalog.arena, static_cast<std::int64_t>(i)));
      listed[catalog.tensors[i].name] = trees.back();
    }
  };
  std::vector<RankEntries> ranks;
  for (std::size_t rank = 0; rank < saves.size(); ++rank) {
    const std::size_t first = catalog.tensors.size(), first_stored = catalog.stored.size();
    Merge(catalog, files, saves[rank], false).add_spread();
    if (is_joined) {
      ranks.push_back({saves[rank].models.front(), std::exchange(catalog.tensors, {}), first_stored});
      continue;
    }
    list_from(first);
    if (rank > 0) add_prefix(catalog, first, prefix_of(rank));
  }
  if (is_joined) {
    join_model_ranks(catalog, ranks, saves.size());
    list_from(0);
  }
  for (std::size_t rank = 0; rank < saves.size(); ++rank) {
    Merge(catalog, files, saves[rank], false).add_trees(prefix_of(rank), trees);
  }
  catalog.root = make_list(*catalog.arena, ValueKind::kList, trees);
  return flat;
}

void merge(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves, std::size_t tensor_ranks,
           bool from_module) {
  std::vector<RankEntries> ranks;
  for (const Save& save : saves) {
    const std::size_t first_stored = catalog.stored.size();
    Merge(catalog, files, save, from_module).add_tensors();
    if (saves.size() > 1) {
      ranks.push_back({save.models.front(), std::exchange(catalog.tensors, {}), first_stored});
    }
  }
  Merge(catalog, files, saves.front(), from_module).add_objects();
  for (std::size_t rank = 0; rank < saves.size(); ++rank) {
    Merge(catalog, files, saves[rank], from_module).add_rank_objects(rank);
  }
  if (saves.size() > 1) join_model_ranks(catalog, ranks, tensor_ranks);
}

}  // namespace shard::deepspeed
