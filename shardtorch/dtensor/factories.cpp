// DTensors from tensors: from a rank's part, from a whole tensor to shard, or from values.
#include <ATen/ATen.h>

#include <utility>

#include "libshard/core/box.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/dtensor/reduction.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard::dtensor {

namespace {

Sizes row_major(const Sizes& shape) {
  Sizes strides(shape.size());
  row_major_strides(shape, strides);
  return strides;
}

at::Tensor nothing_like(const at::Tensor& tensor) { return at::empty({0}, tensor.options()); }

/// Size and strides of the whole tensor if every rank has a part of the same size. Source: compute_global_tensor_info
/// of torch 2.11.
std::pair<Sizes, Sizes> whole_of(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  Sizes shape = local.sizes().vec(), strides = local.strides().vec();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const std::int64_t dim = sharded_dim(placements[axis]);
    if (dim < 0) continue;
    const auto sharded = static_cast<std::size_t>(dim);
    const std::int64_t ranks = mesh.size(axis), stride = strides[sharded];
    shape[sharded] *= ranks;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      if (d != sharded && strides[d] >= stride) strides[d] *= ranks;
    }
  }
  return {std::move(shape), std::move(strides)};
}

/// The mesh's rank at position 0 of all axes that replicate, and at the position of `rank` on the others.
std::int64_t first_replica(const DeviceMesh& mesh, const Placements& placements, std::int64_t rank) {
  std::int64_t first = 0, stride = 1;
  for (std::size_t axis = mesh.ndim(); axis-- > 0;) {
    const std::int64_t size = mesh.size(axis), place = rank / stride % size;
    if (!std::holds_alternative<Replicate>(placements[axis])) first += place * stride;
    stride *= size;
  }
  return first;
}

/// Compares the ranks' arguments, and copies the first replica of each part to its other replicas. A collective.
void check_and_copy(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements, bool same_sizes) {
  const ProcessGroup& group = *mesh.group();
  const auto member = [&](std::int64_t rank) {
    return static_cast<std::size_t>(group.group_rank_of(mesh.ranks()[static_cast<std::size_t>(rank)]));
  };
  const std::int64_t own = *mesh.index(), first = first_replica(mesh, placements, own);
  transfer(group, [&] {
    Transfer parts(group.size(), local.scalar_type());
    parts.arguments = {"placements=" + to_string(placements)};
    if (same_sizes) parts.arguments.push_back(c10::str("local size=", local.sizes()));
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      if (rank != own && first_replica(mesh, placements, rank) == own) parts.to[member(rank)].push_back(local);
    }
    if (first != own) parts.from[member(first)].push_back(local);
    return parts;
  });
}

void check_source(std::int64_t source, const DeviceMesh& mesh) {
  for (std::size_t axis = 0; axis < mesh.ndim(); ++axis) {
    SHARD_CHECK_VALUE(source >= 0 && source < mesh.size(axis), "rank ", source, " is not on dimension ", axis, " of ",
                      mesh.str());
  }
}

/// The mesh's rank at position `source` on all axes.
std::int64_t source_index(std::int64_t source, const DeviceMesh& mesh) {
  std::int64_t index = 0;
  for (const MeshAxis& axis : mesh.axes()) index = index * axis.size + source;
  return index;
}

/// This rank's part of the tensor on `source`. A collective.
at::Tensor scattered(const at::Tensor& whole, const DeviceMesh& mesh, const TensorLayout& layout, std::int64_t source) {
  const ProcessGroup& group = *mesh.group();
  at::Tensor local;
  transfer(group, [&] {
    check_source(source, mesh);
    const RankPiece own = part_of(layout, *mesh.index());
    const auto sender = static_cast<std::size_t>(source_index(source, mesh));
    local = at::empty(own.local_sizes, whole.options());
    Transfer transfer(group.size(), whole.scalar_type());
    transfer.arguments = {to_string(layout), c10::str("src_data_rank=", source)};
    for (std::size_t i = 0; i < own.boxes.size(); ++i) {
      transfer.from[static_cast<std::size_t>(group.group_rank_of(mesh.ranks()[sender]))].push_back(
          narrow_tensor_by_index(local, own.local_offsets[i], sizes_of(own.boxes[i])));
    }
    if (static_cast<std::int64_t>(sender) != *mesh.index()) return transfer;
    for (const RankPiece& part : parts_of(layout)) {
      const int receiver = mesh.ranks()[static_cast<std::size_t>(part.rank)];
      for (const Box& box : part.boxes) {
        transfer.to[static_cast<std::size_t>(group.group_rank_of(receiver))].push_back(
            narrow_tensor_by_index(whole, offsets_of(box), sizes_of(box)));
      }
    }
    return transfer;
  });
  return local;
}

/// This rank's part of its own `whole`.
at::Tensor cut(const at::Tensor& whole, const DeviceMesh& mesh, const TensorLayout& layout) {
  const RankPiece own = part_of(layout, *mesh.index());
  at::Tensor local = at::empty(own.local_sizes, whole.options());
  for (std::size_t i = 0; i < own.boxes.size(); ++i) {
    const Box& box = own.boxes[i];
    narrow_tensor_by_index(local, own.local_offsets[i], sizes_of(box))
        .copy_(narrow_tensor_by_index(whole, offsets_of(box), sizes_of(box)));
  }
  return local;
}

/// Gives each rank a term for replicated axes that become Partial.
at::Tensor partitioned(at::Tensor local, const DeviceMesh& mesh, const Placements& placements) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (const auto* const partial = std::get_if<Partial>(&placements[axis])) {
      local = term_of(local, mesh.size(axis), partial->op);
    }
  }
  return local;
}

}  // namespace

DTensor DTensor::from_local(at::Tensor local, DeviceMeshPtr mesh, Placements placements,
                            const FromLocalOptions& options) {
  if (local.device().type() != mesh->device_type() && !local.is_meta()) local = local.to(mesh->device());
  const auto dims = static_cast<std::int64_t>(options.shape ? options.shape->size() : local.sizes().size());
  placements = normalized(std::move(placements), mesh->ndim(), dims);
  SHARD_CHECK(options.shape || !options.strides, "Please pass both shape and stride at the same time.");
  auto [shape, strides] = options.shape ? std::pair(*options.shape, options.strides.value_or(row_major(*options.shape)))
                                        : whole_of(local, *mesh, placements);
  if (!mesh->is_member()) {
    local = nothing_like(local);
  } else if (options.run_check) {
    check_and_copy(local.detach(), *mesh, placements, !options.shape);
  }
  TensorLayout layout{std::move(shape), mesh->shape(), std::move(placements)};
  return make_dtensor(std::move(local), std::move(mesh), std::move(layout), std::move(strides));
}

DTensor distribute_tensor(const at::Tensor& tensor, DeviceMeshPtr mesh, Placements placements,
                          std::optional<std::int64_t> src_data_rank) {
  SHARD_CHECK(tensor.is_leaf(),
              "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!");
  TensorLayout layout{tensor.sizes().vec(), mesh->shape(),
                      normalized(std::move(placements), mesh->ndim(), tensor.dim())};
  const at::NoGradGuard no_grad;
  at::Tensor whole = tensor.detach();
  if (whole.device().type() != mesh->device_type()) whole = whole.to(mesh->device());
  at::Tensor local = !mesh->is_member() ? nothing_like(whole)
                     : src_data_rank    ? scattered(whole, *mesh, layout, *src_data_rank)
                                        : cut(whole, *mesh, layout);
  if (mesh->is_member()) local = partitioned(std::move(local), *mesh, layout.placements);
  local.set_requires_grad(tensor.requires_grad());
  return make_dtensor(std::move(local), std::move(mesh), std::move(layout), tensor.strides().vec());
}

DTensor empty(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options) {
  TensorLayout layout{size.vec(), mesh->shape(),
                      normalized(std::move(placements), mesh->ndim(), static_cast<std::int64_t>(size.size()))};
  Sizes own{0};
  if (mesh->is_member()) own = part_of(layout, *mesh->index()).local_sizes;
  const auto dtype = options.dtype.value_or(c10::get_default_dtype_as_scalartype());
  at::Tensor local = at::empty(own, at::TensorOptions(mesh->device()).dtype(dtype));
  local.set_requires_grad(options.requires_grad);
  Sizes strides = row_major(layout.shape);
  return make_dtensor(std::move(local), std::move(mesh), std::move(layout), std::move(strides));
}

DTensor full(at::IntArrayRef size, const at::Scalar& value, DeviceMeshPtr mesh, Placements placements,
             const FactoryOptions& options) {
  const DTensor made = empty(size, std::move(mesh), std::move(placements), options);
  const at::NoGradGuard no_grad;
  at::Tensor local = made.local();
  local.fill_(value);
  return made;
}

DTensor zeros(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options) {
  return full(size, 0, std::move(mesh), std::move(placements), options);
}

DTensor ones(at::IntArrayRef size, DeviceMeshPtr mesh, Placements placements, const FactoryOptions& options) {
  return full(size, 1, std::move(mesh), std::move(placements), options);
}

}  // namespace shard::dtensor
