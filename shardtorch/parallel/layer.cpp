#include "shardtorch/parallel/layer.h"

#include <ATen/ATen.h>

#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/ops.h"

namespace shard::parallel {

namespace {

ShardingSpecPtr spec_over(const ProcessGroup& group, std::int64_t dim, at::Device device) {
  std::vector<RemoteDevice> placements;
  for (const int rank : group.global_ranks()) placements.emplace_back(rank, device);
  return chunk_spec(dim, std::move(placements));
}

at::Tensor gathered(const at::Tensor& own, std::int64_t whole, const ProcessGroupPtr& group) {
  std::vector<at::Tensor> chunks;
  std::vector<std::int64_t> sizes = own.sizes().vec();
  for (int rank = 0; rank < group->size(); ++rank) {
    sizes.back() = chunk_of(*group, whole, rank).size;
    chunks.push_back(at::empty(sizes, own.options()));
  }
  all_gather_into(chunks, own.contiguous(), group);
  return at::cat(chunks, -1);
}

at::Tensor own_part(const at::Tensor& whole, const ProcessGroup& group) {
  const Chunk chunk = own_chunk(group, whole.size(-1));
  return whole.narrow(-1, chunk.begin, chunk.size).contiguous();
}

void check_member(const ProcessGroup& group) {
  SHARD_CHECK_VALUE(group.is_member(), "this process is not a member of the group ", group.name());
}

}  // namespace

Chunk chunk_of(const ProcessGroup& group, std::int64_t whole, int rank) {
  const std::int64_t split = split_size(whole, group.size());
  return {std::min(rank * split, whole), chunked_dim_size(whole, split, rank), whole};
}

at::Tensor cut_parameter(const at::Tensor& whole, std::int64_t dim, const ProcessGroupPtr& group) {
  check_member(*group);
  const ShardingSpecPtr spec = spec_over(*group, dim, whole.device());
  return requires_grad_(shard_tensor(whole.detach().contiguous(), spec, 0, group)).as_tensor();
}

at::Tensor local_of(const at::Tensor& parameter) { return ShardedTensor::of(parameter).local_tensor(); }

at::Tensor same_parameter(const at::Tensor& whole, const ProcessGroupPtr& group) {
  check_member(*group);
  const at::Tensor same = whole.detach().clone(at::MemoryFormat::Contiguous);
  broadcast(same, 0, group);
  return same.requires_grad_();
}

at::Tensor gather_last(const at::Tensor& own, std::int64_t whole, const ProcessGroupPtr& group) {
  return functional::differentiable(
      {own}, [&] { return functional::Tensors{gathered(own, whole, group)}; },
      [group](const functional::Tensors& gradients) { return functional::Tensors{own_part(gradients[0], *group)}; })[0];
}

at::Tensor split_last(const at::Tensor& whole, const ProcessGroupPtr& group) {
  return functional::differentiable(
      {whole}, [&] { return functional::Tensors{own_part(whole, *group)}; },
      [group, size = whole.size(-1)](const functional::Tensors& gradients) {
        return functional::Tensors{gathered(gradients[0], size, group)};
      })[0];
}

}  // namespace shard::parallel
