/// \file
/// DTensor: one tensor over a DeviceMesh, sharded, replicated or in terms along each of its axes.
///
/// A rank's part is `local()`, an ordinary tensor, on which optimizers work. Functions that change the whole are here
/// and differentiable: redistribute, full_tensor, to_local. Handles are shared references, like those of at::Tensor,
/// and never change except for the elements of local().
///
/// `as_tensor()` is the same object as an at::Tensor without storage, for state dicts and for operators: torch's
/// functions take it (a DTensor converts to it), and return tensors of this kind, of which `of` gives the DTensor.
/// Operators redistribute their tensors if they must, as those of torch 2.11 do, and record gradients at local()
/// (operators.h; docs/dtensor.md has a table). Others throw "... is not supported for DTensor! Compute on local() ...".
/// A call of an operator may be a collective, so all ranks of the mesh make the same calls.
///
/// Gradients: the gradient of local() is that of the whole, in the placements of the tensor; Replicate if it is
/// Partial. If ranks use a replica in different ways, their gradients are terms: use to_local({Partial}).
///
/// Communicating functions are collectives of the mesh, and so are their backwards, so all its ranks make the same
/// call. If their arguments differ, all throw. Invalid placements are refused before anything is sent, on the rank that
/// passes them. On a rank outside the mesh local() is an empty tensor, and no function communicates. Threads: one at a
/// time per mesh.
///
/// Source: torch/distributed/tensor/_api.py and _redistribute.py (torch 2.11).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <ostream>
#include <string>

#include "shardtorch/dtensor/device_mesh.h"
#include "shardtorch/dtensor/placements.h"
#include "shardtorch/dtensor/redistribution_plan.h"
#include "shardtorch/sharded_tensor/metadata.h"

namespace shard::dtensor {

class DTensorImpl;  // dtensor.cpp

struct FromLocalOptions {
  /// Compares sizes and dtypes over the ranks, and copies the elements of the first rank of each axis that replicates
  /// into the tensors of its others. A collective.
  bool run_check = false;
  /// The whole tensor's shape. Required if ranks have parts of different sizes; otherwise computed.
  std::optional<Sizes> shape{};
  /// Strides in elements, with `shape`; row-major if not given.
  std::optional<Sizes> strides{};
};

struct RedistributeOptions {
  /// The dtype of the result. Elements are converted before they are sent. Nothing: the tensor's own dtype.
  std::optional<at::ScalarType> forward_dtype{};
  /// The dtype in which gradients are sent back, before their conversion to the tensor's. Nothing: no change.
  std::optional<at::ScalarType> backward_dtype{};
  /// A different mesh of the same world. The call is then a collective of the world, autograd records nothing, and the
  /// result is a leaf. Null, or an equal mesh: the tensor's own mesh.
  DeviceMeshPtr mesh{};
};

class DTensor {
 public:
  DTensor() = default;  ///< No tensor. Only `defined`, `is_same` and assignment are allowed.

  /// `local` becomes this rank's part. It is shared, not copied, unless the mesh's device differs. No collective
  /// without run_check. Differentiable: local() is `local`.
  /// \throws c10::ValueError  invalid placements (normalized()); a size that does not match the placements of the whole
  ///   on this rank; with run_check: ranks differ. c10::IndexError
  static DTensor from_local(at::Tensor local, DeviceMeshPtr mesh, Placements placements,
                            const FromLocalOptions& options = {});
  /// The DTensor of a `tensor` from as_tensor(); undefined for any other tensor.
  static DTensor of(const at::Tensor& tensor);

  bool defined() const { return tensor_.defined(); }
  bool is_same(const DTensor& other) const { return tensor_.is_same(other.tensor_); }

  /// This rank's part, as autograd knows it: a leaf for an optimizer if the tensor was created as one.
  const at::Tensor& local() const;
  /// The local tensor as a new handle, whose gradient is in `grad_placements` (a collective in backward). Without them,
  /// the handle is local() itself. \throws c10::ValueError, c10::IndexError  see normalized()
  at::Tensor to_local(const std::optional<Placements>& grad_placements = std::nullopt) const;

  /// The same tensor in different placements, or this very tensor if the placements are equal. A collective, unless
  /// every rank already has all elements that it needs (Replicate to Shard). The new local tensor is contiguous.
  /// \throws c10::ValueError  see normalized(); ranks pass different placements. c10::Error  an axis becomes Partial:
  ///   "Can not redistribute from ... to ..., redistributing to Partial is for internal use only!"; errors of
  ///   reductions (an average of integers). shard::Error kPeer
  /// Cost: one exchange of the missing elements. Each axis from Partial to Replicate needs an all_reduce before it, and
  /// axes from Partial to shards need an exchange of terms.
  DTensor redistribute(Placements placements, const RedistributeOptions& options = {}) const;
  /// The whole tensor on every rank: redistributes to Replicate. `grad_placements` are the placements of the result's
  /// gradients. The default is Replicate, which is right if all ranks use the result in the same way. A collective.
  at::Tensor full_tensor(const std::optional<Placements>& grad_placements = std::nullopt) const;

  at::IntArrayRef sizes() const;    ///< The whole tensor's.
  at::IntArrayRef strides() const;  ///< The whole tensor's, in elements.
  std::int64_t size(std::int64_t dim) const;
  std::int64_t dim() const { return static_cast<std::int64_t>(sizes().size()); }
  std::int64_t numel() const;
  at::ScalarType dtype() const { return local().scalar_type(); }
  at::Device device() const { return local().device(); }
  bool requires_grad() const { return local().requires_grad(); }
  const DeviceMeshPtr& device_mesh() const;
  const Placements& placements() const;
  const TensorLayout& layout() const;

  const at::Tensor& as_tensor() const { return tensor_; }
  operator const at::Tensor&() const { return tensor_; }  ///< at::relu(tensor)
  std::string str() const;  ///< "DTensor(size=[8, 4], dtype=Float, device_mesh=..., placements=[S(0), R])"

 private:
  friend DTensor make_dtensor(at::Tensor local, DeviceMeshPtr mesh, TensorLayout layout, Sizes strides);
  explicit DTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  const DTensorImpl& impl() const;
  /// On a different mesh; see RedistributeOptions.
  DTensor on_mesh(const DeviceMeshPtr& mesh, Placements placements, at::ScalarType dtype) const;

  at::Tensor tensor_;
};

std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

/// Shards `tensor` of the rank at position `src_data_rank` on every axis, and sends each rank its part: a new leaf with
/// the tensor's requires_grad. Without a source, each rank shards its own tensor and sends nothing. Partial: terms
/// whose sum is the tensor. A collective.
/// \throws c10::ValueError  see normalized(); sizes, dtypes or arguments differ between ranks; the source is not on the
///   mesh; a Partial with an operation other than sum, avg, min or max. c10::Error  not a leaf. shard::Error kPeer
/// Cost: one exchange. Only the source needs the whole tensor. On other ranks a tensor of the same size is enough.
DTensor distribute_tensor(const at::Tensor& tensor, DeviceMeshPtr mesh, Placements placements,
                          std::optional<std::int64_t> src_data_rank = 0);

struct FactoryOptions {
  std::optional<at::ScalarType> dtype{};  ///< torch's default dtype if not given.
  bool requires_grad = false;
};
/// Tensors of which each rank allocates only its own part. Not a collective.
/// \throws c10::ValueError, c10::IndexError  see normalized()
DTensor empty(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options = {});
DTensor full(at::IntArrayRef size, const at::Scalar& value, DeviceMeshPtr mesh, Placements placements,
             const FactoryOptions& options = {});
DTensor zeros(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options = {});
DTensor ones(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options = {});

/// The common last step of the functions above. \pre `layout` is for `mesh`; `local` is on the mesh's device
/// \throws c10::ValueError  the local size does not match the layout.
DTensor make_dtensor(at::Tensor local, DeviceMeshPtr mesh, TensorLayout layout, Sizes strides);

}  // namespace shard::dtensor
