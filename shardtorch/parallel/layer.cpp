#include "shardtorch/parallel/layer.h"

#include <ATen/ATen.h>

#include <vector>

#include "libshard/catalog/layouts/split.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/ops.h"

namespace shard::parallel {

namespace {

/// In the dtype of `options`, detached and contiguous.
at::Tensor converted(const at::Tensor& whole, const ParameterOptions& options) {
  return whole.detach().to(options.dtype.value_or(whole.scalar_type())).contiguous();
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

}  // namespace

Chunk chunk_of(const ProcessGroup& group, std::int64_t whole, int rank) {
  const DimRange own = piece_of(whole, split_size(whole, group.size()), rank);
  return {own.begin, own.size, whole};
}

at::Tensor cut_parameter(const at::Tensor& whole, std::int64_t dim, const ProcessGroupPtr& group,
                         const ParameterOptions& options) {
  group->member_group();
  const ShardingSpecPtr spec = chunk_spec(dim, group, whole.device());
  ShardedTensor sharded = shard_tensor(converted(whole, options), spec, 0, group);
  if (options.device.has_value()) sharded = sharded.to(*options.device);
  return requires_grad_(std::move(sharded)).as_tensor();
}

at::Tensor local_of(const at::Tensor& parameter) { return ShardedTensor::of(parameter).local_tensor(); }

at::Tensor same_parameter(const at::Tensor& whole, const ProcessGroupPtr& group, const ParameterOptions& options) {
  group->member_group();
  const at::Tensor same = converted(whole, options).clone();
  broadcast(same, 0, group);
  return same.to(options.device.value_or(same.device())).requires_grad_();
}

void print_start(std::ostream& stream, const char* name, const at::Tensor& weight, const char* first,
                 const char* second) {
  stream << "shard::parallel::" << name << '(' << first << '=' << weight.size(0) << ", " << second << '='
         << weight.size(1);
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
