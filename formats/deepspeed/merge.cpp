#include "formats/deepspeed/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/deepspeed/flat_layout.h"
#include "formats/deepspeed/groups.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/parts/pickle/equal.h"
#include "formats/torch/load_tree.h"
#include "libshard/catalog/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

namespace {

/// A tensor as one rank's file has it.
struct HeldView {
  std::uint32_t file;
  std::int64_t rank;
  TensorView view;
};

class Merge {
 public:
  Merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save, bool from_module)
      : catalog_(catalog), arena_(*catalog.arena), files_(files), save_(save), from_module_(from_module) {}

  void run() {
    if (!save_.optimizers.empty()) add_parameters();
    add_frozen();
    add_module();
    add_shared();
    add_objects();
  }

  FlatTensors run_whole() {
    if (!save_.optimizers.empty()) add_parameters();
    if (save_.is_parted()) add_frozen();
    FlatTensors flat;
    std::vector<Value*> trees;
    for (const auto& [name, index] : by_name_.entries()) {
      trees.push_back(make_tensor(arena_, index));
      flat[name] = trees.back();
    }
    load_tree("model_states", save_.models.front().file, *save_.models.front().root, trees);
    if (!save_.optimizers.empty()) {
      warn_of_differences();
      load_tree("optim_states", save_.optimizers.front().file, *save_.optimizers.front().root, trees);
    }
    catalog_.root = make_list(arena_, ValueKind::kList, trees);
    return flat;
  }

 private:
  // Tensors

  void claim(std::string_view name) {
    if (by_name_.contains(name)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the save holds '{}' twice", name))
          .of_tensor(name)
          .of_kind(FindingKind::kDuplicateName);
    }
    by_name_[name] = static_cast<std::uint32_t>(catalog_.tensors.size());
  }

  std::uint32_t add_stored(const HeldView& held) {
    arena_.charge(Charge::kChunks);
    StoredTensor stored = torch_save::stored_tensor(held.view, files_.storage_of(held.file, held.view));
    stored.rank = static_cast<std::int32_t>(held.rank);
    catalog_.stored.push_back(stored);
    return static_cast<std::uint32_t>(catalog_.stored.size() - 1);
  }

  void begin(std::string_view name, Path path, DType dtype, Dims shape) {
    arena_.charge(Charge::kEntries);
    Tensor& tensor = catalog_.tensors.emplace_back();
    tensor.name = name;
    tensor.path = path;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.first_chunk = static_cast<std::uint32_t>(catalog_.chunks.size());
  }

  void add_chunk(std::uint32_t stored, std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes,
                 Dims strides, std::int64_t first) {
    arena_.charge(Charge::kChunks);
    catalog_.chunks.push_back({arena_.dims(offsets), arena_.dims(sizes), strides, first, stored});
    ++catalog_.tensors.back().chunk_count;
  }

  /// A tensor that lies whole in each of these.
  void add_whole(std::string_view name, std::span<const HeldView> copies) {
    claim(name);
    const TensorView& first = copies.front().view;
    begin(name, {}, first.dtype, first.shape);
    for (const HeldView& held : copies) {
      if (held.view.dtype != first.dtype || held.view.shape != first.shape) {
        throw Error(ErrorCode::kCorruption, fmt::format("ranks hold '{}' in different shapes or dtypes", name))
            .in_file(catalog_.files[held.file].path)
            .of_tensor(name)
            .of_kind(FindingKind::kReplicaMismatch);
      }
      add_chunk(add_stored(held), arena_.zeros(held.view.shape.size()), held.view.shape, held.view.strides,
                held.view.first);
    }
  }

  /// A tensor whose runs lie in buffers; `buffers` are by rank, absent ones hold nothing of it.
  void add_flat(std::string_view name, Path path, Dims shape, std::span<const FlatRun> runs,
                std::span<const std::uint32_t> buffers, DType dtype) {
    claim(name);
    begin(name, path, dtype, shape);
    const Dims strides = row_major_strides(arena_, shape);
    if (runs.empty()) {
      const std::uint32_t any = *std::ranges::find_if(buffers, [](std::uint32_t each) { return each != kNoIndex; });
      add_chunk(any, arena_.zeros(shape.size()), shape, strides, catalog_.stored[any].first);
    }
    for (const FlatRun& run : runs) {
      const std::uint32_t buffer = buffers[static_cast<std::size_t>(run.rank)];
      if (buffer == kNoIndex) {
        throw Error(ErrorCode::kCorruption, fmt::format("rank {} does not hold its part of '{}'", run.rank, name))
            .of_tensor(name)
            .of_rank(static_cast<int>(run.rank))
            .of_kind(FindingKind::kGap);
      }
      const std::int64_t first = catalog_.stored[buffer].first + run.first;
      for_each_box_of_run(shape, run.begin, run.count, [&](auto offsets, auto sizes, std::int64_t before) {
        add_chunk(buffer, offsets, sizes, strides, first + before);
      });
    }
  }

  // Parameters

  void add_parameters() {
    const std::vector<FlatParam> params = lay_out(catalog_, groups_of(save_), save_.optimizers).params;
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

  /// The module's own copy of a parameter.
  void add_copy(std::string_view name, Dims shape) {
    const ModelStates& model = save_.models.front();
    const TensorView* const view = model.module.find(name);
    if (save_.is_parted()) {
      throw Error(ErrorCode::kUnsupported,
                  "cannot read the 16-bit weights of a stage 3 save, which does not hold them");
    }
    if (view == nullptr || view->shape != shape) {
      throw Error(ErrorCode::kCorruption, fmt::format("the module does not hold '{}' in its shape", name))
          .in_file(catalog_.files[model.file].path)
          .of_tensor(name)
          .of_kind(FindingKind::kShapeMismatch)
          .expected(to_string(shape));
    }
    add_whole(name, std::array{HeldView{model.file, 0, *view}});
  }

  /// One state of all parameters that have it; without a name the parameters themselves.
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
      if (!is_held) continue;  // A group that was never stepped has no states.
      const auto [name, path] = name_of(state, param.name);
      add_flat(name, path, param.shape, param.runs, buffers, dtype);
    }
  }

  template <class BufferOf>
  std::vector<std::uint32_t> add_buffers(std::string_view state, std::size_t group, const BufferOf& buffer_of,
                                         DType& dtype) {
    std::vector<std::uint32_t> buffers;
    std::optional<DType> first;
    for (const OptimizerStates& rank : save_.optimizers) {
      const std::optional<TensorView> view = buffer_of(rank, group);
      buffers.push_back(view ? add_stored({rank.file, rank.ranks.data_rank, *view}) : kNoIndex);
      if (!view) continue;
      if (first.value_or(view->dtype) != view->dtype) {
        throw Error(ErrorCode::kCorruption,
                    fmt::format("ranks hold '{}' in different dtypes", state.empty() ? "fp32" : state))
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

  // What no optimizer updates

  /// For a look at each rank's states: many names in one file and many small files make work beyond their bytes.
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
        throw Error(ErrorCode::kCorruption, fmt::format("ranks do not hold the frozen parameter '{}'", name))
            .of_tensor(name)
            .of_kind(FindingKind::kGap);
      }
      save_.is_parted() ? add_frozen_parts(name, shape, parts) : add_whole(name, std::span(parts).first(1));
    }
  }

  void add_frozen_parts(std::string_view name, Dims shape, std::span<const HeldView> parts) {
    const std::int64_t numel = checked_numel(shape), size = part_of(numel, std::ssize(parts));
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
      buffers.push_back(add_stored(part));
    }
    add_flat(name, {}, shape, runs_in_parts(numel, std::ssize(parts), 0), buffers, parts.front().view.dtype);
  }

  /// Buffers, and the frozen parameters of stage 1, which nothing but the module holds. Without an optimizer all of it.
  void add_module() {
    const ModelStates& model = save_.models.front();
    for (const auto& [name, view] : model.module.entries()) {
      if (by_name_.contains(name) || model.shared.contains(name)) continue;
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
      add_whole(name, copies);
    }
  }

  void add_shared() {
    for (const auto& [alias, real] : save_.models.front().shared.entries()) {
      const std::uint32_t* const found = by_name_.find(real);
      if (found == nullptr) {
        throw Error(ErrorCode::kCorruption, fmt::format("'{}' repeats '{}', which is not there", alias, real))
            .of_tensor(alias)
            .of_kind(FindingKind::kIndexMismatch);
      }
      const Tensor original = catalog_.tensors[*found];
      claim(alias);
      begin(alias, {}, original.dtype, original.shape);
      for (std::uint32_t i = 0; i < original.chunk_count; ++i) {
        const Chunk chunk = catalog_.chunks[original.first_chunk + i];
        arena_.charge(Charge::kChunks);
        catalog_.stored.push_back(StoredTensor(catalog_.stored[chunk.stored]));  // An entry of its own, as others have.
        add_chunk(static_cast<std::uint32_t>(catalog_.stored.size() - 1), chunk.offsets, chunk.sizes, chunk.strides,
                  chunk.first);
      }
    }
  }

  // Objects

  static constexpr std::array<std::string_view, 8> kSpread{
      "module",        "buffer_names",           "param_shapes",  "frozen_param_shapes",
      "shared_params", "frozen_param_fragments", "dp_world_size", "mp_world_size"};

  void add_objects() {
    const ModelStates& model = save_.models.front();
    std::vector<Value*> items;
    const std::span<Value*> all = mapping_items(*model.root);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      const std::string_view key = all[i]->is_string() ? all[i]->text() : std::string_view();
      const bool is_elsewhere = key == "optimizer" && !save_.optimizers.empty();
      if (is_elsewhere || std::ranges::find(kSpread, key) != kSpread.end()) continue;
      items.insert(items.end(), {all[i], all[i + 1]});
    }
    load(model.file, *make_list(arena_, ValueKind::kDict, items));
    if (model.module_rest != nullptr) load(model.file, *model.module_rest);
    if (save_.optimizers.empty()) return;
    const OptimizerStates& first = save_.optimizers.front();
    Value* const pair[] = {make_string(arena_, "optimizer"), first.rest};
    warn_of_differences();
    load(first.file, *make_list(arena_, ValueKind::kDict, pair));
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
    pickle::Equality equality({.budget = arena_.budget().get()});
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
  HashMap<std::string_view, std::uint32_t> by_name_;  ///< Tensors by name: their index.
};

}  // namespace

std::string name_of_state(std::string_view param, std::string_view state) {
  return state.empty() ? std::string(param) : fmt::format("optimizer.state.{}.{}", param, state);
}

FlatTensors merge_whole(Catalog& catalog, torch_save::SavedFiles& files, const Save& save) {
  return Merge(catalog, files, save, false).run_whole();
}

void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save, bool from_module) {
  Merge(catalog, files, save, from_module).run();
}

}  // namespace shard::deepspeed
