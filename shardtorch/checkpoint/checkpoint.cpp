#include "shardtorch/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "formats/detect.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/tree.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/execute.h"
#include "libshard/io/file_writer.h"
#include "libshard/ranks/collective_step.h"
#include "shardtorch/checkpoint/saved_state.h"
#include "shardtorch/checkpoint/saving.h"
#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/state/dtypes.h"
#include "shardtorch/state/values.h"

namespace shard::checkpoint {

namespace {

/// Tensors of a state dict, and values without tensors, by name.
struct WantedTensor {
  std::string name;
  std::string stored;  ///< Name in the checkpoint.
  at::Tensor tensor;
};

struct WantedValue {
  std::string name, stored;
  bool is_empty_dict;  ///< Some formats do not store empty dicts.
  std::function<void(c10::IValue)> assign;
};

/// Loads in three steps. An error before the last step changes no value, one before the second step no tensor.
class Loading {
 public:
  /// Ownership: `state` must outlive this.
  Loading(StateDict& state, int rank, const LoadOptions& options)
      : state_(state), rank_(rank), options_(options), memory_(options.on_progress) {}

  /// Opens the checkpoint, compares it with the state, and plans.
  /// \throws Error  see load()
  void prepare(const std::string& path);
  /// Reads this rank's bytes into the tensors.
  void read(const std::stop_token& stop);
  /// Assigns the other values.
  LoadResult finish();

 private:
  void want_tensor(const WantedTensor& wanted);
  const Tensor* find_tensor(const std::string& name) const;
  void add_target(const WantedTensor& wanted, const Tensor& found);
  void add_box(const at::Tensor& local, at::IntArrayRef offsets);
  at::Tensor memory_for(const at::Tensor& local);
  void find_values(std::vector<WantedValue> wanted);
  void miss(const std::string& name, const std::string& stored);
  void check_missing() const;
  void find_unexpected(const std::vector<WantedTensor>& tensors, const std::vector<WantedValue>& values);

  StateDict& state_;
  const int rank_;
  const LoadOptions options_;
  std::unique_ptr<Reader> reader_;
  Catalog target_;  ///< Describes one file: memory_.
  CatalogBuilder builder_{target_};
  TensorMemory memory_;
  Plan plan_;
  std::unordered_set<const void*> filled_;                  ///< Memory that is read into directly.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;   ///< Further names of one memory, filled afterwards.
  std::vector<std::pair<WantedValue, c10::IValue>> found_;  ///< The values that finish() assigns.
  LoadResult result_;
  std::string first_missing_;  ///< Name in the checkpoint.
};

bool holds_tensor(const c10::IValue& value) {
  bool found = false;
  value.visit([&](const c10::IValue& each) { return found = found || each.isTensor(); });
  return found;
}

/// The leaves of a state dict. Dicts, lists and tuples are searched if they contain a tensor.
class Wants {
 public:
  Wants(StateDict& state, const Rename& rename) : rename_(rename) {
    for (auto& item : state) {
      enter(PathPart::of_key(item.key()), item.value(),
            [&item](c10::IValue value) { item.value() = std::move(value); });
    }
  }

  std::vector<WantedTensor> tensors;
  std::vector<WantedValue> values;

 private:
  using Assign = std::function<void(c10::IValue)>;

  void enter(const PathPart& part, const c10::IValue& value, Assign assign) {
    position_.push(part);
    visit(value, std::move(assign));
    position_.pop();
  }

  void visit(const c10::IValue& value, Assign assign) {
    if (value.isTensor()) {
      std::string name(position_.name()), stored = stored_name(name);
      tensors.push_back({std::move(name), std::move(stored), value.toTensor()});
    } else if (!holds_tensor(value)) {
      const bool is_empty_dict = value.isGenericDict() && value.toGenericDict().empty();
      std::string name(position_.name()), stored = stored_name(name);
      values.push_back({std::move(name), std::move(stored), is_empty_dict, std::move(assign)});
    } else if (value.isGenericDict()) {
      visit_dict(value.toGenericDict());
    } else if (value.isList()) {
      visit_list(value.toList());
    } else {
      visit_tuple(value.toTuple());
    }
  }

  void visit_dict(const c10::impl::GenericDict& dict) {
    Arena arena;
    for (const auto& entry : dict) {
      const c10::IValue& key = entry.key();
      enter(key_part(arena, *to_value(arena, key, nullptr)), entry.value(),
            [dict, key](c10::IValue value) { dict.insert_or_assign(key, std::move(value)); });
    }
  }

  void visit_list(const c10::List<c10::IValue>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      enter(index_part(i), list.get(i), [list, i](c10::IValue value) { list.set(i, std::move(value)); });
    }
  }

  void visit_tuple(const c10::intrusive_ptr<c10::ivalue::Tuple>& tuple) {
    for (std::size_t i = 0; i < tuple->size(); ++i) {
      enter(index_part(i), tuple->elements()[i],
            [tuple, i](c10::IValue value) { tuple->unsafeSetElement(i, std::move(value)); });
    }
  }

  std::string stored_name(const std::string& name) const { return rename_ ? rename_(name) : name; }

  const Rename& rename_;
  TreePosition position_;
};

/// The values of a checkpoint by name: objects, and whole containers.
class FoundValues {
 public:
  FoundValues(const Catalog& catalog, const std::vector<WantedValue>& wanted, int rank) {
    for (const WantedValue& each : wanted) values_.try_emplace(each.stored, nullptr);
    for (const Object& object : catalog.objects) {
      if (object.rank < 0 || object.rank == rank) note(object.name, *object.value);
    }
    const bool is_complete =
        std::ranges::none_of(values_.entries(), [](const auto& each) { return each.value == nullptr; });
    if (!is_complete && catalog.root != nullptr) visit(*catalog.root);
  }

  const Value* find(const std::string& name) const { return *values_.find(name); }

 private:
  void note(std::string_view name, const Value& value) {
    const Value** known = values_.find(name);
    if (known != nullptr && *known == nullptr) *known = &value;
  }

  void visit(const Value& value) {
    if (!position_.parts().empty()) note(position_.name(), value);
    if (!is_container(value)) return;
    const std::span<Value*> items = container_items(value);
    const std::size_t step = is_mapping(value) ? 2 : 1;
    for (std::size_t i = 0; i + step <= items.size(); i += step) {
      position_.push(step == 2 ? key_part(arena_, *items[i]) : index_part(i));
      visit(*items[i + step - 1]);
      position_.pop();
    }
  }

  HashMap<std::string, const Value*> values_;  ///< Null until found.
  TreePosition position_;
  Arena arena_;
};

/// \throws Error  the elements of `tensor` cannot be filled individually.
void check_fillable(const at::Tensor& tensor) {
  check_storable(tensor);
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw Error(ErrorCode::kInvalidArgument, "cannot fill a tensor whose elements share memory");
}

Error mismatch(const std::string& name, const std::string& what, std::string_view expected, std::string_view found) {
  Error error(ErrorCode::kInvalidArgument,
              c10::str("tensor '", name, "' has a different ", what, " in the checkpoint"));
  error.expected(expected).found(found);
  return error;
}

void Loading::prepare(const std::string& path) {
  const Source source{options_.store, {path}};
  reader_ = detect_format(source).open(source, {});
  target_.files.push_back({memory_.name(), 0, -1});
  Wants wants(state_, options_.rename);
  for (const WantedTensor& wanted : wants.tensors) want_tensor(wanted);
  find_unexpected(wants.tensors, wants.values);
  if (!wants.values.empty()) find_values(std::move(wants.values));
  check_missing();
  std::vector<std::uint32_t> sources;
  for (const Tensor& tensor : target_.tensors) sources.push_back(tensor.source);
  std::ranges::sort(sources);
  reader_->locate(sources);
  plan_ = plan_copies(reader_->catalog(), target_,
                      {.max_memory_bytes = options_.max_memory_bytes, .threads = options_.threads});
}

void Loading::want_tensor(const WantedTensor& wanted) {
  if (!wanted.tensor.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("'", wanted.name, "' is undefined, so there is nothing to load into"))
        .of_tensor(wanted.name);
  }
  const Tensor* found = find_tensor(wanted.stored);
  if (found == nullptr) return miss(wanted.name, wanted.stored);
  try {
    add_target(wanted, *found);
  } catch (Error& error) {
    throw error.of_tensor(wanted.name);
  }
}

const Tensor* Loading::find_tensor(const std::string& name) const {
  const auto entries = std::ranges::equal_range(reader_->catalog().tensors, std::string_view(name), {}, &Tensor::name);
  const auto own = std::ranges::find(entries, rank_, &Tensor::rank);
  if (own != entries.end()) return &*own;
  if (entries.size() > 1) {
    throw Error(ErrorCode::kInvalidArgument, c10::str("the checkpoint has several tensors '", name, "'"))
        .of_tensor(name)
        .found(std::ssize(entries));
  }
  return entries.empty() ? nullptr : &entries.front();
}

void Loading::add_target(const WantedTensor& wanted, const Tensor& found) {
  const at::Tensor& tensor = wanted.tensor;
  const DType dtype = dtype_of(tensor.scalar_type());
  const bool is_dtype_right = dtype == found.dtype || (options_.cast && can_cast(found.dtype, dtype));
  if (!is_dtype_right) throw mismatch(wanted.name, "dtype", dtype_name(dtype), dtype_name(found.dtype));
  if (!std::ranges::equal(tensor.sizes(), found.shape)) {
    throw mismatch(wanted.name, "shape", to_string(tensor.sizes()), to_string(found.shape));
  }
  builder_.begin(target_.arena->copy(wanted.name), {}, dtype, found.shape);
  builder_.tensor().source = reader_->catalog().index_of(found);
  const ShardedTensor sharded = ShardedTensor::of(tensor);
  if (sharded.defined()) {
    for (const Shard& shard : sharded.local_shards()) {
      check_storable(shard, sharded.dtype());
      add_box(shard.tensor, shard.metadata.shard_offsets);
    }
  } else if (const dtensor::DTensor distributed = dtensor::DTensor::of(tensor); distributed.defined()) {
    for (const LocalBox& box : local_boxes(distributed)) add_box(box.tensor, box.offsets);
  } else {
    add_box(tensor, Sizes(static_cast<std::size_t>(tensor.dim())));
  }
  const auto chunks = std::span(target_.chunks).subspan(builder_.tensor().first_chunk);
  std::ranges::sort(
      chunks, [](Dims a, Dims b) { return std::ranges::lexicographical_compare(a, b); }, &Chunk::offsets);
}

void Loading::add_box(const at::Tensor& local, at::IntArrayRef offsets) {
  check_fillable(local);
  if (local.numel() == 0) return;
  const std::uint32_t storage = builder_.add_storage(
      {.offset = memory_.add(memory_for(local)), .bytes = static_cast<std::int64_t>(local.nbytes())});
  add_packed_chunk(builder_, offsets, local.sizes(),
                   {.shape = {}, .strides = {}, .storage = storage, .dtype = builder_.tensor().dtype});
}

/// Returns the tensor itself if no other name fills the same elements.
at::Tensor Loading::memory_for(const at::Tensor& local) {
  if (filled_.insert(local.const_data_ptr()).second) return local;
  staged_.emplace_back(local, at::empty(local.sizes(), at::TensorOptions().dtype(local.scalar_type())));
  return staged_.back().second;
}

void Loading::find_values(std::vector<WantedValue> wanted) {
  reader_->load_objects();
  const FoundValues values(reader_->catalog(), wanted, rank_);
  for (WantedValue& each : wanted) {
    const Value* value = values.find(each.stored);
    if (find_tensor(each.stored) != nullptr) {
      throw Error(ErrorCode::kInvalidArgument, c10::str("'", each.name, "' is a tensor in the checkpoint"))
          .of_tensor(each.name)
          .expected("a tensor to fill");
    }
    if (value == nullptr) {
      if (!each.is_empty_dict) miss(each.name, each.stored);
      continue;
    }
    try {
      c10::IValue found = to_ivalue(*value);
      found_.emplace_back(std::move(each), std::move(found));
    } catch (Error& error) {
      throw error.of_tensor(each.name);
    }
  }
}

void Loading::miss(const std::string& name, const std::string& stored) {
  if (result_.missing.empty()) first_missing_ = stored;
  result_.missing.push_back(name);
}

void Loading::check_missing() const {
  if (!options_.strict || result_.missing.empty()) return;
  const std::size_t more = result_.missing.size() - 1;
  const std::string others = more == 0 ? std::string() : c10::str(" and ", more, " more names");
  throw Error(ErrorCode::kNotFound, c10::str("the checkpoint lacks '", first_missing_, "'", others))
      .of_tensor(result_.missing.front());
}

/// If a container is wanted as a value, the names inside it count as wanted.
void Loading::find_unexpected(const std::vector<WantedTensor>& tensors, const std::vector<WantedValue>& values) {
  HashSet<std::string_view> known, whole;
  for (const WantedTensor& each : tensors) known.insert(each.stored);
  for (const WantedValue& each : values) whole.insert(each.stored);
  const auto is_inside = [&whole](std::string_view name) {
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
      if (whole.contains(name.substr(0, dot))) return true;
    }
    return whole.contains(name);
  };
  const auto note = [&](std::string_view name, int rank) {
    const bool is_here = rank < 0 || rank == rank_;
    if (is_here && !is_inside(name) && known.insert(name)) result_.unexpected.emplace_back(name);
  };
  for (const Tensor& tensor : reader_->catalog().tensors) note(tensor.name, tensor.rank);
  for (const Object& object : reader_->catalog().objects) note(object.name, object.rank);
}

void Loading::read(const std::stop_token& stop) {
  const at::NoGradGuard no_grad;
  memory_.wait_for_devices();
  FileWriter* const memory[] = {&memory_};
  Progress progress;
  execute(plan_, reader_->catalog(), *reader_, target_, memory,
          {.threads = options_.threads, .max_memory_bytes = options_.max_memory_bytes, .stop = stop}, progress);
  for (const auto& [tensor, content] : staged_) tensor.copy_(content);
  memory_.wait_for_devices();
  result_.bytes_read = progress.bytes_read;
}

LoadResult Loading::finish() {
  for (const auto& [wanted, value] : found_) wanted.assign(value);
  return std::move(result_);
}

}  // namespace

void save(const StateDict& state, const std::string& path, ProcessGroupPtr group, const SaveOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = group->member_group();
  Saving(*group, state, path, options).write(ranks, options.stop);
}

LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group, const LoadOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = group->member_group();
  Loading loading(state, ranks.rank(), options);
  collective_step(ranks, {.stop = options.stop}, [&](const std::stop_token&) { loading.prepare(path); });
  collective_step(ranks, {.stop = options.stop}, [&](const std::stop_token& stop) { loading.read(stop); });
  return loading.finish();
}

LoadResult load(torch::nn::Module& module, const std::string& path, const std::string& prefix, ProcessGroupPtr group,
                const LoadOptions& options) {
  StateDict state = state_dict(module);
  if (prefix.empty()) return load(state, path, std::move(group), options);
  LoadOptions part = options;
  part.rename = [&](const std::string& name) {
    std::string stored = c10::str(prefix, '.', name);
    return options.rename ? options.rename(stored) : stored;
  };
  LoadResult result = load(state, path, std::move(group), part);
  std::erase_if(result.unexpected, [&](const std::string& name) { return !name.starts_with(prefix + '.'); });
  return result;
}

}  // namespace shard::checkpoint
