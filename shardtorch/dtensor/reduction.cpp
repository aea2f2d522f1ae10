#include "shardtorch/dtensor/reduction.h"

#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

void add_term(at::Tensor& sum, const at::Tensor& term, ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      sum.mul_(term);
      return;
    case ReduceOp::kMin:
      at::minimum_out(sum, sum, term);
      return;
    case ReduceOp::kMax:
      at::maximum_out(sum, sum, term);
      return;
    default:  // A sum. For a mean the caller divides it afterwards.
      sum.add_(term);
  }
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& local, const DeviceMesh& mesh, std::size_t axis, ReduceOp op) {
  at::Tensor reduced = local.clone(at::MemoryFormat::Contiguous);
  shard::all_reduce(reduced, op, mesh.get_group(axis));
  return reduced;
}

at::Tensor reduce_terms(std::vector<at::Tensor> terms, const Placements& from, const Placements& to,
                        const DeviceMesh& mesh) {
  at::Tensor reduced = std::move(terms.front());
  std::int64_t divisor = 1;
  ReduceOp op = ReduceOp::kSum;
  for (std::size_t axis = 0; axis < from.size(); ++axis) {
    const auto* const partial = std::get_if<Partial>(&from[axis]);
    if (partial == nullptr || is_partial(to[axis])) continue;
    op = partial->op;
    if (op == ReduceOp::kMean) divisor *= mesh.size(axis);
  }
  for (std::size_t i = 1; i < terms.size(); ++i) add_term(reduced, terms[i], op);
  if (divisor > 1) reduced.div_(divisor);
  return reduced;
}

at::Tensor term_of(const at::Tensor& tensor, std::int64_t axis_size, ReduceOp op) {
  SHARD_CHECK_VALUE(op != ReduceOp::kProduct, "Replicate to ", to_string(Placement(Partial{op})),
                    " conversion is not supported.");
  if (op != ReduceOp::kSum) return tensor;
  SHARD_CHECK_VALUE(tensor.is_floating_point() || tensor.is_complex(),
                    "integers cannot be divided into terms of a sum: expected a Partial of avg, min or max");
  return tensor / axis_size;
}

}  // namespace shard::dtensor
