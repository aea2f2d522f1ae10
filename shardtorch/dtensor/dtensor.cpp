#include "shardtorch/dtensor/dtensor.h"

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "libshard/core/box.h"
#include "shardtorch/dtensor/redistribute.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard::dtensor {

/// A tensor without storage. Its operators reach the fallback of operators.cpp.
class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(at::Tensor part, DeviceMeshPtr where, TensorLayout how, Sizes strides)
      : c10::TensorImpl(c10::DispatchKeySet(ShardedTensorImpl::kDispatchKey), part.dtype(), part.device()),
        local(std::move(part)),
        mesh(std::move(where)),
        layout(std::move(how)) {
    set_sizes_and_strides(layout.shape, strides);
    set_storage_access_should_throw();
  }

  const at::Tensor local;
  const DeviceMeshPtr mesh;
  const TensorLayout layout;

  const char* tensorimpl_type_name() const override { return "DTensor"; }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&, bool) const override {
    SHARD_CHECK(false, "a second handle on the same elements is not supported for DTensor!");
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&, bool) const override {
    SHARD_CHECK(false, "a second handle on the same elements is not supported for DTensor!");
  }
};

DTensor make_dtensor(at::Tensor local, DeviceMeshPtr mesh, TensorLayout layout, Sizes strides) {
  if (mesh->is_member()) {
    const Sizes expected = part_of(layout, *mesh->index()).local_sizes;
    SHARD_CHECK_VALUE(local.sizes() == at::IntArrayRef(expected), "the local tensor has size ", local.sizes(),
                      ", but the part of this rank of ", to_string(layout), " has ", at::IntArrayRef(expected));
  }
  return DTensor(at::Tensor(
      c10::make_intrusive<DTensorImpl>(std::move(local), std::move(mesh), std::move(layout), std::move(strides))));
}

DTensor DTensor::of(const at::Tensor& tensor) {
  const auto* impl = tensor.defined() ? dynamic_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl()) : nullptr;
  return impl != nullptr ? DTensor(tensor) : DTensor();
}

const DTensorImpl& DTensor::impl() const {
  SHARD_CHECK(defined(), "this handle refers to no DTensor");
  return static_cast<const DTensorImpl&>(*tensor_.unsafeGetTensorImpl());
}

const at::Tensor& DTensor::local() const { return impl().local; }
at::IntArrayRef DTensor::sizes() const { return impl().layout.shape; }
at::IntArrayRef DTensor::strides() const { return impl().strides(); }
std::int64_t DTensor::size(std::int64_t dim) const {
  return sizes()[static_cast<std::size_t>(wrapped_dim(dim, this->dim(), /*wrap_scalar=*/false))];
}
std::int64_t DTensor::numel() const { return impl().numel(); }
const DeviceMeshPtr& DTensor::device_mesh() const { return impl().mesh; }
const Placements& DTensor::placements() const { return impl().layout.placements; }
const TensorLayout& DTensor::layout() const { return impl().layout; }

/// The gradient of the result has `grad_placements`; backward redistributes it to this tensor's.
at::Tensor DTensor::to_local(const std::optional<Placements>& grad_placements) const {
  const DTensorImpl& own = impl();
  if (!grad_placements || !own.mesh->is_member()) return own.local;
  return redistribute_local(
      own.local, {own.mesh, own.layout, own.layout.placements, normalized(*grad_placements, own.mesh->ndim(), dim())});
}

/// Elements move only if the placements change. The gradient later moves from the new placements, without Partial, to
/// the old ones.
DTensor DTensor::redistribute(Placements placements, const RedistributeOptions& options) const {
  const DTensorImpl& own = impl();
  const DeviceMeshPtr& mesh = options.mesh != nullptr ? options.mesh : own.mesh;
  const at::ScalarType there = options.forward_dtype.value_or(dtype());
  placements = normalized(std::move(placements), mesh->ndim(), dim());
  if (*mesh != *own.mesh) return on_mesh(mesh, std::move(placements), there);
  if (placements == own.layout.placements && there == dtype()) return *this;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    SHARD_CHECK(!is_partial(placements[axis]) || placements[axis] == own.layout.placements[axis],
                "Can not redistribute from ", to_string(own.layout.placements[axis]), " to ",
                to_string(placements[axis]), ", redistributing to Partial is for internal use only!");
  }
  TensorLayout layout{own.layout.shape, own.layout.mesh, placements};
  at::Tensor local = own.local;
  if (own.mesh->is_member()) {
    local = redistribute_local(local, {own.mesh, own.layout, placements, placements_of_gradient(placements),
                                       options.forward_dtype, options.backward_dtype});
  }
  return make_dtensor(std::move(local), own.mesh, std::move(layout), own.strides().vec());
}

DTensor DTensor::on_mesh(const DeviceMeshPtr& mesh, Placements placements, at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  at::Tensor local = part_on(*mesh, placements, *this).to(dtype).set_requires_grad(requires_grad());
  TensorLayout layout{this->layout().shape, mesh->shape(), std::move(placements)};
  return make_dtensor(std::move(local), mesh, std::move(layout), strides().vec());
}

at::Tensor DTensor::full_tensor(const std::optional<Placements>& grad_placements) const {
  const DTensorImpl& own = impl();
  if (!own.mesh->is_member()) return own.local;
  const Placements whole(own.mesh->ndim(), Replicate());
  return redistribute_local(
      own.local,
      {own.mesh, own.layout, whole, grad_placements ? normalized(*grad_placements, own.mesh->ndim(), dim()) : whole});
}

std::string DTensor::str() const {
  return c10::str("DTensor(size=", sizes(), ", dtype=", dtype(), ", device_mesh=", device_mesh()->str(),
                  ", placements=", to_string(placements()), ")");
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) { return out << tensor.str(); }

}  // namespace shard::dtensor
