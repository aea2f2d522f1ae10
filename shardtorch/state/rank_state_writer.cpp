#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <functional>
#include <list>
#include <unordered_map>
#include <utility>

#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "formats/torch_ranks/sharded_value_maker.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/core/digest.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/state/dtypes.h"
#include "shardtorch/state/state_dict.h"
#include "shardtorch/state/values.h"

namespace shard {

namespace {

using torch_ranks::ShardBox;
using torch_ranks::ShardedTensorValue;
using torch_save::TensorView;

/// The form that the Python of this LibTorch loads.
constexpr torch_ranks::LayoutForm kLayoutForm = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
                                                    ? torch_ranks::LayoutForm::kPair
                                                    : torch_ranks::LayoutForm::kAxes;

[[noreturn]] void refuse_tensor(const std::string& why) {
  throw Error(ErrorCode::kUnsupported, "a tensor cannot be saved").because(why);
}

/// The reason why a plain tensor cannot be described by its storage; empty if it can.
std::string obstacle(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided)
    return c10::str("its layout is ", tensor.layout(), "; only strided tensors can be");
  if (tensor.is_quantized()) return "it is quantized";
  if (tensor.is_meta() || !tensor.has_storage()) return "it has no storage";
  return tensor.device().is_cpu() || tensor.device().is_cuda() ? "" : c10::str("it is on ", tensor.device());
}

std::int64_t number_of(at::MemoryFormat format) {
  const auto number = memory_format_number(format);
  if (!number) refuse_tensor(c10::str("its memory format is ", format));
  return *number;
}

/// The storages of a state without duplicates, numbered in the order in which they are visited.
class Storages {
 public:
  struct Record {
    c10::Storage storage;
    std::int64_t bytes;
    DType dtype;  ///< The dtype of the first tensor that uses it.
  };

  /// \throws Error kUnsupported  tensors with different dtypes share it; files have one type per storage.
  std::size_t number_of(const at::Tensor& tensor) {
    const DType dtype = dtype_of(tensor.scalar_type());
    const auto [known, is_new] = numbers_.try_emplace(tensor.storage().unsafeGetStorageImpl(), records_.size());
    if (is_new) {
      const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
      records_.push_back({tensor.storage(), bytes - bytes % tensor.element_size(), dtype});
    } else if (records_[known->second].dtype != dtype) {
      refuse_tensor("another tensor views the same data as a different type");
    }
    return known->second;
  }
  const std::vector<Record>& records() const { return records_; }

 private:
  std::vector<Record> records_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> numbers_;
};

/// A state as the tree of its pickle. Each tensor is a number.
class StateTree {
 public:
  explicit StateTree(const StateDict& state)
      : maker_(arena_),
        root_(to_value(arena_, state, [this](const at::Tensor& tensor) { return tensor_of(tensor); })) {}

  std::string pickle() {
    return torch_save::dump(*root_, [this](std::int64_t number) { return view(static_cast<std::size_t>(number)); });
  }
  const std::vector<Storages::Record>& records() const { return storages_.records(); }

 private:
  struct PlainTensor {
    at::Tensor tensor;
    std::size_t storage;
  };

  Value* tensor_of(const at::Tensor& tensor) {
    if (!tensor.defined()) refuse_tensor("it is undefined");
    Value*& known = known_[tensor.unsafeGetTensorImpl()];
    if (known != nullptr) return known;
    const ShardedTensor sharded = ShardedTensor::of(tensor);
    if (sharded.defined()) return known = sharded_of(sharded);
    const dtensor::DTensor distributed = dtensor::DTensor::of(tensor);
    return known = distributed.defined() ? dtensor_of(distributed) : plain_of(tensor);
  }

  Value* plain_of(const at::Tensor& tensor) {
    if (const std::string why = obstacle(tensor); !why.empty()) refuse_tensor(why);
    tensors_.push_back({tensor, storages_.number_of(tensor)});
    return make_tensor(arena_, std::ssize(tensors_) - 1);
  }

  Value* sharded_of(const ShardedTensor& tensor) {
    if (tensor.process_group() == nullptr) refuse_tensor("it has no process group");
    const ShardedTensorMetadata& metadata = tensor.metadata();
    ShardedTensorValue value;
    value.dtype = dtype_of(metadata.tensor_properties.dtype);
    value.shape = arena_.dims(metadata.size);
    value.requires_grad = metadata.tensor_properties.requires_grad;
    value.pin_memory = metadata.tensor_properties.pin_memory;
    value.memory_format = number_of(metadata.tensor_properties.memory_format);
    value.init_rrefs = tensor.init_rrefs();
    std::vector<ShardBox> all;
    for (const ShardMetadata& shard : metadata.shards_metadata) all.push_back(box_of(shard));
    value.all = std::move(all);
    for (const Shard& shard : tensor.local_shards()) {
      value.local.push_back({box_of(shard.metadata), tensor_of(shard.tensor)});
    }
    const ProcessGroupPtr world = default_group();
    value.group = {tensor.process_group()->rank(), world->rank(), tensor.process_group()->size(), world->size()};
    value.spec = spec_of(*tensor.sharding_spec());
    return maker_.sharded_tensor(value);
  }

  Value* dtensor_of(const dtensor::DTensor& tensor) {
    if (std::ranges::any_of(tensor.placements(), dtensor::is_partial)) {
      refuse_tensor(c10::str("its placements are ", to_string(tensor.placements()), ": redistribute it first"));
    }
    torch_ranks::DTensorValue value;
    value.dtype = dtype_of(tensor.dtype());
    value.shape = arena_.dims(tensor.sizes());
    value.requires_grad = tensor.requires_grad();
    value.local = tensor_of(tensor.local());
    SavedMesh& mesh = mesh_of(*tensor.device_mesh());
    value.sharding = mesh.sharding;
    value.sharding.placements = dtensor::in_catalog(tensor.placements());
    value.device_type = mesh.device_type;
    return maker_.dtensor(value, mesh.value);
  }

  /// Writes a mesh, once for all tensors on it. The ranks number the groups of meshes in the order of their states.
  struct SavedMesh {
    dtensor::DeviceMeshPtr mesh;
    Sharding sharding;  ///< Without placements.
    std::string device_type;
    Value* value;
  };
  SavedMesh& mesh_of(const dtensor::DeviceMesh& mesh) {
    const auto known = std::ranges::find_if(meshes_, [&](const SavedMesh& each) { return *each.mesh == mesh; });
    if (known != meshes_.end()) return *known;
    if (!mesh.is_member()) refuse_tensor("this rank is not on its mesh");
    SavedMesh& made = meshes_.emplace_back();
    made.mesh = mesh.shared_from_this();
    made.sharding.mesh = mesh.axes();
    const std::vector<std::int64_t> ranks(mesh.ranks().begin(), mesh.ranks().end());
    if (!torch_ranks::is_counting(ranks)) made.sharding.ranks = ranks;
    made.device_type = c10::DeviceTypeName(mesh.device_type(), /*lower_case=*/true);
    made.value = maker_.device_mesh({.sharding = &made.sharding,
                                     .index = *mesh.index(),
                                     .groups = groups_.add_mesh(made.sharding, *mesh.index(), mesh.world()->size()),
                                     .device_type = made.device_type,
                                     .ranks = plain_of(at::tensor(mesh.ranks(), at::kInt)),
                                     .layout = kLayoutForm});
    return made;
  }

  ShardBox box_of(const ShardMetadata& shard) {
    ShardBox box{arena_.dims(shard.shard_offsets), arena_.dims(shard.shard_sizes), {}, -1};
    if (!shard.placement) return box;
    box.placement = arena_.copy(shard.placement->str());
    box.rank = shard.placement->rank().value_or(-1);
    return box;
  }

  torch_ranks::ShardSpec spec_of(const ShardingSpec& spec) {
    torch_ranks::ShardSpec said;
    if (const ChunkShardingSpec* chunk = as_chunk(spec)) {
      said.is_chunk = true;
      said.dim = static_cast<int>(chunk->dim());
      for (const RemoteDevice& placement : chunk->placements()) {
        said.placements.push_back(arena_.copy(placement.str()));
      }
    } else if (dynamic_cast<const EnumerableShardingSpec*>(&spec) == nullptr) {
      refuse_tensor(c10::str("its sharding spec is a ", spec.class_name()));
    }
    return said;
  }

  TensorView view(std::size_t number) {
    const auto& [tensor, storage] = tensors_[number];
    TensorView view;
    view.dtype = dtype_of(tensor.scalar_type());
    view.shape = arena_.dims(tensor.sizes());
    view.strides = arena_.dims(tensor.strides());
    view.first = tensor.storage_offset();
    view.key = arena_.copy(std::to_string(storage));
    view.location = arena_.copy(tensor.device().str());
    view.storage_bytes = records()[storage].bytes;
    view.requires_grad = tensor.requires_grad();
    view.conj = tensor.is_conj();
    view.neg = tensor.is_neg();
    return view;
  }

  Arena arena_;
  torch_ranks::ShardedValueMaker maker_;
  torch_ranks::GroupNames groups_;
  std::list<SavedMesh> meshes_;  ///< A list, because values refer to its elements.
  Storages storages_;
  std::vector<PlainTensor> tensors_;  ///< By number.
  std::unordered_map<const c10::TensorImpl*, Value*> known_;
  Value* root_;  ///< Declared last: its tensors are added to the members above.
};

/// The layout of a state's file.
class StateFile {
 public:
  explicit StateFile(const StateDict& state)
      : tree_(state), pickle_(tree_.pickle()), zip_("archive", std::ssize(pickle_), sizes(tree_)) {}

  std::int64_t total_bytes() const { return zip_.total_bytes(); }

  /// Passes every byte to `write`, directly from the storages if they are in this process's memory.
  void write(const std::function<void(std::int64_t offset, std::span<const std::byte> bytes)>& write) const {
    std::vector<std::uint32_t> crcs;
    for (const Storages::Record& record : tree_.records()) {
      const at::Tensor host = on_host(record);
      const std::span bytes(static_cast<const std::byte*>(host.const_data_ptr()),
                            static_cast<std::size_t>(record.bytes));
      if (!bytes.empty()) write(zip_.data_offset(crcs.size()), bytes);
      crcs.push_back(crc32(bytes));
    }
    for (const torch_save::SavedZip::Span& span : zip_.frame(pickle_, crcs)) {
      write(span.offset, std::as_bytes(std::span(span.content)));
    }
  }

 private:
  static std::vector<std::int64_t> sizes(const StateTree& tree) {
    std::vector<std::int64_t> bytes;
    for (const Storages::Record& record : tree.records()) bytes.push_back(record.bytes);
    return bytes;
  }

  /// The storage as bytes: the storage itself if it is on the CPU, or else a copy.
  static at::Tensor on_host(const Storages::Record& record) {
    const at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(record.storage.device()));
    return bytes.set_(record.storage, 0, {record.bytes}, {1}).cpu();
  }

  StateTree tree_;
  const std::string pickle_;
  torch_save::SavedZip zip_;
};

}  // namespace

std::string save_state(const StateDict& state) {
  const StateFile file(state);
  std::string bytes(static_cast<std::size_t>(file.total_bytes()), '\0');
  file.write([&bytes](std::int64_t offset, std::span<const std::byte> part) {
    std::ranges::copy(part, std::as_writable_bytes(std::span(bytes)).begin() + offset);
  });
  return bytes;
}

void save_state_file(const StateDict& state, const std::string& path, bool force, LocalDisk& disk) {
  const StateFile file(state);
  const auto store = local_output(disk, path, {}, {.force = force});
  const OutputFile written{base_name(path), file.total_bytes()};
  const auto output = store->begin(std::span(&written, 1), false);
  const auto part = store->part(output->token());
  FileWriter& writer = part->create(written);
  file.write([&writer](std::int64_t offset, std::span<const std::byte> bytes) { writer.write_at(offset, bytes); });
  part->finish();
  output->commit();
}

}  // namespace shard
