/// \file
/// ShardedTensor: one tensor whose parts are on the ranks of a process group.
///
/// Handles are shared references, like those of at::Tensor: a copy of a handle copies no elements, and `is_same`
/// compares identity. A handle contains a c10::TensorImpl without storage: `as_tensor()` is the same object as an
/// at::Tensor, for parameters of modules and values of state dicts. Every operator on it goes to ops.h, never to an
/// ordinary kernel. It runs the registered op or throws "... not supported for ShardedTensor!".
///
/// Functions communicate only if documented. Those are SPMD: all members of the group make the same call. Collectives
/// agree on errors. All ranks throw the error of one rank, and a c10::ValueError with both sides if ranks differ in
/// arguments or in a tensor's metadata (size, properties, boxes, owners). The group remains usable. With init_rrefs it
/// is otherwise, see CreateOptions. Threads: one at a time per tensor.
///
/// Source: torch/distributed/_shard/sharded_tensor/api.py (torch 2.11).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/autograd_node.h"
#include "shardtorch/sharded_tensor/metadata.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "shardtorch/sharded_tensor/rpc.h"
#include "shardtorch/sharded_tensor/shard.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"

namespace shard {

class ShardedTensorImpl;  // sharded_tensor_impl.h

/// For all factories. A dtype that is not given is torch's default dtype.
struct CreateOptions {
  std::optional<at::ScalarType> dtype{};
  at::Layout layout = at::kStrided;
  bool requires_grad = false;
  bool pin_memory = false;  ///< CPU shards only; needs CUDA.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  ProcessGroupPtr process_group{};  ///< Null: the default group.
  /// Creates remote_shards(). All workers of the RPC construct the tensor together. If an error occurs before a worker
  /// has its local shards, only this worker throws it. The others wait for it in the RPC and throw a c10::Error at its
  /// timeout. This holds for the constructor and its factories, for moves, clone, and loading of state.
  bool init_rrefs = false;
};

/// The functions that need no process group: metadata, properties, and local shards on any ranks.
class ShardedTensorBase {
 public:
  ShardedTensorBase() = default;  ///< No tensor. Only `defined`, `is_same` and assignment are allowed.
  /// Nothing is compared between ranks. Local tensors are used unchanged, even if they are not contiguous. `spec` null:
  /// inferred. The result's metadata is rebuilt from the spec.
  /// \throws c10::ValueError  "shards_metadata must not be empty!", a layout other than strided, overlap, gaps.
  static ShardedTensorBase init_from_local_shards_and_global_metadata(std::vector<Shard> local_shards,
                                                                      const ShardedTensorMetadata& metadata,
                                                                      ShardingSpecPtr spec = nullptr);

  bool defined() const { return tensor_.defined(); }
  bool is_same(const ShardedTensorBase& other) const { return tensor_.is_same(other.tensor_); }

  const ShardedTensorMetadata& metadata() const;  ///< Metadata of the whole tensor, the same on every rank.
  /// This rank's shards, possibly none. In the program's order, or else in the metadata's.
  const std::vector<Shard>& local_shards() const;
  const ShardingSpecPtr& sharding_spec() const;
  /// Sets the sharding, if the program knows it better than it can be inferred.
  /// \throws c10::ValueError  `spec` does not give the same shards, apart from empty ones.
  void set_sharding_spec(ShardingSpecPtr spec);

  at::IntArrayRef sizes() const;
  /// \throws c10::IndexError  "Dimension out of range (expected to be in range of [-2, 1], but got 2)".
  std::int64_t size(std::int64_t dim) const;
  std::int64_t dim() const { return static_cast<std::int64_t>(sizes().size()); }
  std::int64_t numel() const;
  at::ScalarType dtype() const;
  at::Layout layout() const;
  bool requires_grad() const;
  bool is_contiguous() const { return true; }
  bool is_floating_point() const;
  bool is_pinned() const;  ///< According to the metadata.
  bool is_leaf() const;
  at::Tensor grad() const;
  AutogradNodePtr grad_fn() const;  ///< Null for a leaf.
  /// Python's assignment. \throws c10::Error  always: "torch function '__set__' ... not supported for ShardedTensor!";
  /// use requires_grad_ (ops.h).
  void set_requires_grad(bool requires_grad);

  /// The same object as a tensor without storage. Its device() is the CPU, regardless of the shards. Its
  /// requires_grad_() and set_requires_grad() reach metadata and local shards at the next use of the ShardedTensor.
  /// Its set_data() accepts a ShardedTensor with the same shards and replaces their elements, so torch::nn::Module::to
  /// works. Its grad() throws once local shards have gradients.
  const at::Tensor& as_tensor() const { return tensor_; }
  std::string str() const;  ///< "ShardedTensor(ShardedTensorMetadata(...))".

 protected:
  /// \pre its impl is a ShardedTensorImpl
  explicit ShardedTensorBase(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  ShardedTensorImpl& impl() const;

 private:
  at::Tensor tensor_{};
};

class ShardedTensor : public ShardedTensorBase {
 public:
  ShardedTensor() = default;
  /// Allocates this rank's shards without initialising them. All ranks check all placements, in the metadata's order.
  /// \throws c10::ValueError  the spec does not fit the size; a layout other than strided; a memory format other than
  ///   contiguous; a placement outside the group or on an unknown worker. c10::Error  RPC is needed but not
  ///   initialized.
  ShardedTensor(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});

  /// The ShardedTensor of a `tensor` from as_tensor(), for objects of either class; undefined for an ordinary tensor.
  static ShardedTensor of(const at::Tensor& tensor);

  /// Joins shards of one tensor on all ranks: local metadata is gathered, merged (in the order of group ranks) and
  /// validated. A rank may have no shards. A collective: an error on one rank makes all ranks throw, even with
  /// init_rrefs.
  /// \throws c10::ValueError  see local_metadata.h; c10::Error
  /// Without a `global_size`, every rank passes one shard. Only the shards' sizes count, because they are placed
  /// consecutively along the first dimension, in the order of ranks.
  static ShardedTensor init_from_local_shards(std::vector<Shard> local_shards, at::OptionalIntArrayRef global_size,
                                              ProcessGroupPtr group = nullptr, bool init_rrefs = false);
  /// Does the same if every rank already knows the whole metadata. Nothing is compared between ranks, so it is not a
  /// collective, and errors are only this rank's own (with init_rrefs see CreateOptions).
  static ShardedTensor init_from_local_shards_and_global_metadata(std::vector<Shard> local_shards,
                                                                  const ShardedTensorMetadata& metadata,
                                                                  ProcessGroupPtr group = nullptr,
                                                                  bool init_rrefs = false,
                                                                  ShardingSpecPtr spec = nullptr);
  /// `local_tensor` becomes this rank's part of a tensor sharded by `spec`. Not a collective; errors as above.
  /// Deprecated by torch, with one warning.
  /// \throws c10::ValueError  "local_tensor is not a contiguous Tensor."; errors of the spec and of Shard.
  static ShardedTensor init_from_local_tensor(at::Tensor local_tensor, ShardingSpecPtr spec,
                                              at::IntArrayRef global_size, ProcessGroupPtr group = nullptr,
                                              bool init_rrefs = false);

  /// Null if the object was created as a ShardedTensorBase. Functions that need a group then throw a c10::Error with
  /// this reason.
  const ProcessGroupPtr& process_group() const;
  bool init_rrefs() const;
  /// \throws c10::NotImplementedError  "Only single local shard is supported.": this rank has none, or several.
  at::Tensor local_tensor() const;
  /// Device of the first local shard, or the group's preferred device if there is none.
  at::Device device() const;
  bool is_meta() const { return device().is_meta(); }

  /// Shards by worker id, in that worker's order. Never includes this worker's own shards, or workers without shards.
  /// \throws c10::Error  the tensor was created without init_rrefs.
  const std::map<int, std::vector<RemoteShard>>& remote_shards() const;

  struct GatherOptions {
    bool enforce_dtype = false;  ///< Deprecated: elements are sent in the tensor's dtype, regardless of `dtype`; warns.
    /// Elements are sent in this dtype; nothing: in the tensor's own, without loss.
    std::optional<at::ScalarType> dtype{};
  };
  /// Copies the whole tensor into `out` on group rank `dst`. `out` is passed only there and has the tensor's size. Its
  /// dtype, device and strides may differ. A collective, even for ranks without elements. A process outside the group
  /// does nothing. If it throws, nothing was written, unless a peer died on the way.
  /// \throws c10::ValueError  `out` is missing, on a wrong rank, or of a different size; `dst` is not a rank of the
  ///   group; ranks differ in `dst`, in the dtype, or in the tensor, whose facts are compared first (see the top of
  ///   this file).
  /// Cost: an all_gather of a few bytes to agree on errors, then one exchange. A rank's only shard is sent in place if
  /// it is on the CPU and travels as its dtype; otherwise, and on `dst`, host memory for the data that travels.
  void gather(int dst, const std::optional<at::Tensor>& out, const GatherOptions& options) const;
  void gather(int dst = 0, const std::optional<at::Tensor>& out = std::nullopt) const { gather(dst, out, {}); }

  /// Gathers into a new tensor: the whole one, in its dtype, on device(), on group rank `dst`, and an undefined one on
  /// all others. A collective, as gather. Between ranks on one host, the tensor may use the memory of a released one.
  at::Tensor gather_to(int dst) const;

  /// The whole tensor, new, on every rank: in its dtype, on device(), without gradients. A collective.
  /// \throws c10::ValueError  this process is not a member; otherwise as gather. Cost: as gather, to every rank.
  at::Tensor full_tensor() const;

  /// Moves to the CPU; returns this very tensor if all placements, on all ranks, are on the CPU already. A chunk spec
  /// remains one. Other specs are inferred from the shards. `group` null: the tensor's own. The result is not pinned.
  /// \throws c10::Error  a memory format other than preserve and contiguous.
  ShardedTensor cpu(at::MemoryFormat memory_format = at::MemoryFormat::Preserve, ProcessGroupPtr group = nullptr) const;
  /// Moves to the current CUDA device. Always returns a new object, which shares local tensors that are already there.
  /// Placements of other ranks that are not on a CUDA device become this rank's device, as theirs are unknown.
  /// \throws c10::Error  no CUDA; a device other than the current one; an unsupported memory format.
  ShardedTensor cuda(std::optional<at::Device> device = std::nullopt, bool non_blocking = false,
                     at::MemoryFormat memory_format = at::MemoryFormat::Preserve,
                     ProcessGroupPtr group = nullptr) const;

  struct ToOptions {
    std::optional<at::Device> device{};
    std::optional<at::ScalarType> dtype{};
    bool non_blocking = false, copy = false;
    at::MemoryFormat memory_format = at::MemoryFormat::Preserve;
    ProcessGroupPtr process_group{};
  };
  /// Moves or converts; returns this very tensor if dtype and all placements match already, unless `copy`. "cuda" is
  /// the current device, even if a different index is given (which warns). Without a device, placements do not change.
  /// Integers lose requires_grad, as do results while gradients are off (cpu and cuda as well). Pinning is lost.
  /// `non_blocking` applies to copies to a CUDA device.
  ShardedTensor to(const ToOptions& options) const;
  ShardedTensor to(at::ScalarType dtype) const;
  ShardedTensor to(at::Device device) const;
  ShardedTensor to(const char* device) const;
  ShardedTensor to(int cuda_index) const;
  ShardedTensor to(bool) const = delete;
  ShardedTensor to(const at::Tensor& other) const;  ///< To the dtype and device of `other`.
  ShardedTensor to(at::Device device, at::ScalarType dtype) const;

  /// Reshards the tensor in place, and returns it: from any dimension to any, in any order of owners. A collective, as
  /// gather. Nothing moves if dimension and placements do not change. Afterwards the metadata's shards are in the order
  /// of ranks, empty ones begin at the end at most. The local tensor is a new one. While gradients are recorded and the
  /// tensor requires them, its gradient goes back to the old local tensors (backward is a collective); otherwise
  /// (torch::NoGradGuard, for parameters) it is a leaf with the old one's properties. remote_shards() still refers to
  /// the old shards. Deprecated by torch, with one warning.
  /// \throws c10::NotImplementedError  a spec that is not a chunk spec; a rank without exactly one shard, before or
  ///   after.
  /// \throws c10::ValueError  the spec, the tensor, or whether gradients are recorded differs between ranks.
  ShardedTensor reshard(ShardingSpecPtr spec);

 private:
  explicit ShardedTensor(at::Tensor tensor) : ShardedTensorBase(std::move(tensor)) {}
};

std::ostream& operator<<(std::ostream& out, const ShardedTensorBase& tensor);

/// The number of existing tensors with init_rrefs in this process.
std::size_t registered_sharded_tensors();

/// Rank (in the world) and device of a placement. A worker's id is its rank; -1 if the placement names neither.
/// \throws c10::ValueError  "remote device is None", a rank that is not a member (checked only on members), an unknown
///   worker.
/// \throws c10::Error  "RPC framework needs to be initialized for using worker names: ...".
std::pair<int, at::Device> resolve_placement(const ProcessGroup& group, const std::optional<RemoteDevice>& placement);

/// A tensor with these properties, not initialised. \throws c10::Error  torch's.
at::Tensor create_tensor(at::IntArrayRef size, at::Device device, const TensorProperties& properties);

}  // namespace shard

/// Compares by identity, as `is_same`.
template <>
struct std::hash<shard::ShardedTensorBase> {
  std::size_t operator()(const shard::ShardedTensorBase& tensor) const noexcept {
    return std::hash<const void*>()(tensor.as_tensor().unsafeGetTensorImpl());
  }
};
template <>
struct std::hash<shard::ShardedTensor> : std::hash<shard::ShardedTensorBase> {};
