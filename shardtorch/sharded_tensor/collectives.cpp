#include "shardtorch/sharded_tensor/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/views.h"
#include "shardtorch/sharded_tensor/wire.h"

namespace shard {

namespace {

using Tensors = std::vector<at::Tensor>;

const ProcessGroup& member_of(const ProcessGroupPtr& group) {
  group->member_group();
  return *group;
}

/// The elements of `tensor`, contiguous on the device that the transport reads: either the tensor itself or a copy.
at::Tensor packed(const ProcessGroup& group, const at::Tensor& tensor) {
  group.count_wire_bytes(tensor, tensor.scalar_type());
  return tensor.resolve_conj().resolve_neg().contiguous().to(group.preferred_device());
}

/// The destination of a tensor's elements: the tensor itself if the transport can write to it, or a temporary copy.
class Landing {
 public:
  Landing(const ProcessGroup& group, at::Tensor tensor) : tensor_(std::move(tensor)) {
    group.count_wire_bytes(tensor_, tensor_.scalar_type());
    wire_ = can_send_in_place(group, tensor_, tensor_.scalar_type())
                ? tensor_
                : at::empty(tensor_.sizes(), tensor_.options().device(group.preferred_device()));
  }
  const at::Tensor& wire() const { return wire_; }
  void finish() const {
    if (!wire_.is_same(tensor_)) tensor_.copy_(wire_);
  }

 private:
  at::Tensor tensor_, wire_;
};

bool is_bitwise(ReduceOp how) { return how == ReduceOp::kAnd || how == ReduceOp::kOr || how == ReduceOp::kXor; }

/// \throws c10::TypeError  such numbers cannot be reduced.
void check_reducible(at::ScalarType dtype, ReduceOp how) {
  SHARD_CHECK_TYPE(!is_bitwise(how) || at::isIntegralType(dtype, /*includeBool=*/true),
                   "cannot reduce the bits of dtype ", dtype);
  if (is_bitwise(how)) return;
  const bool is_order = how == ReduceOp::kMin || how == ReduceOp::kMax;
  const bool is_number = at::isIntegralType(dtype, /*includeBool=*/false) ||
                         (at::isFloatingType(dtype) && !at::isFloat8Type(dtype)) || at::isComplexType(dtype);
  const bool can = is_order                 ? is_number && !at::isComplexType(dtype)
                   : how == ReduceOp::kMean ? is_number && !at::isIntegralType(dtype, false)
                                            : is_number;
  SHARD_CHECK_TYPE(can || (is_order && dtype == at::kBool), "cannot apply this reduction to tensors of dtype ", dtype);
}

/// The reductions that both Gloo and NCCL support. A mean is computed as a sum.
bool is_native(const ProcessGroup& group, at::ScalarType dtype, ReduceOp how) {
  if (group.c10d() == nullptr || is_bitwise(how) || (at::isComplexType(dtype) && how == ReduceOp::kProduct))
    return false;
  constexpr at::ScalarType kNative[] = {at::kByte,     at::kChar,  at::kInt,    at::kLong,         at::kHalf,
                                        at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
  return std::ranges::find(kNative, dtype) != std::end(kNative);
}

c10d::ReduceOp c10d_op(ReduceOp how) {
  switch (how) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    default:
      SHARD_CHECK(false, "not a reduction of NCCL");
  }
}

/// The numbers that a backend adds: two for each complex number.
at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

at::Tensor reduced_rows(const at::Tensor& rows, ReduceOp how) {
  switch (how) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return rows.sum(0, /*keepdim=*/false, rows.scalar_type());
    case ReduceOp::kProduct:
      return rows.prod(0, /*keepdim=*/false, rows.scalar_type());
    case ReduceOp::kMin:
      return rows.amin(0);
    case ReduceOp::kMax:
      return rows.amax(0);
    default:
      break;
  }
  const Tensors terms = rows.unbind();
  const at::Tensor reduced = terms.front().clone();
  for (const at::Tensor& term : std::span(terms).subspan(1)) {
    if (how == ReduceOp::kAnd) reduced.bitwise_and_(term);
    if (how == ReduceOp::kOr) reduced.bitwise_or_(term);
    if (how == ReduceOp::kXor) reduced.bitwise_xor_(term);
  }
  return reduced;
}

void divide_if_mean(const at::Tensor& reduced, const ProcessGroup& group, ReduceOp how) {
  if (how == ReduceOp::kMean) reduced.div_(group.size());
}

/// Sends parts[i] of all ranks to rank i, which reduces them. They all have one shape. \pre packed
at::Tensor reduce_parts(const ProcessGroup& group, const Tensors& parts, ReduceOp how) {
  const at::Tensor& own = parts[static_cast<std::size_t>(group.rank())];
  const at::Tensor rows = at::empty({group.size(), own.numel()}, own.options());
  exchange_bytes(group, bytes_of(parts), bytes_of(rows.unbind()));
  return reduced_rows(rows, how).view(own.sizes());
}

/// Each rank reduces one part and sends it to all ranks. \pre packed
void all_reduce_in_parts(const ProcessGroup& group, const at::Tensor& tensor, ReduceOp how) {
  const Tensors parts = tensor.view({tensor.numel()}).tensor_split(group.size());
  const at::Tensor own = bytes_of(reduce_parts(group, parts, how));
  exchange_bytes(group, Tensors(parts.size(), own), bytes_of(parts));
}

/// Splits `dim` into equal parts, stacked along a new first dimension. \throws c10::ValueError  this is not possible
at::Tensor as_rows(const at::Tensor& whole, std::int64_t dim, int ranks) {
  SHARD_CHECK_VALUE(whole.dim() > 0 && whole.size(dim) % ranks == 0, "dimension ", dim, " of a tensor of size ",
                    whole.sizes(), " cannot be divided into ", ranks, " equal parts");
  const std::int64_t along = wrapped_dim(dim, whole.dim());
  return whole.unflatten(along, {ranks, whole.size(along) / ranks}).movedim(along, 0);
}

void check_count(const Tensors& tensors, const ProcessGroup& group) {
  SHARD_CHECK_VALUE(std::ssize(tensors) == group.size(), tensors.size(), " tensors for a group of ", group.size(),
                    " ranks");
}

/// Calls with the root's tensors, one per rank, and with the one that each rank exchanges with the root. Other tensors
/// are empty.
template <class Move>
void from_or_to_root(const at::Tensor& own, const Tensors& of_root, int root, const ProcessGroupPtr& group,
                     const Move& move) {
  const ProcessGroup& ranks = member_of(group);
  ranks.global_rank_of(root);
  const bool is_root = ranks.rank() == root;
  if (is_root) check_count(of_root, ranks);
  SHARD_CHECK_VALUE(is_root || of_root.empty(), "only rank ", root, " passes a tensor for each rank");
  const Tensors none(static_cast<std::size_t>(ranks.size()), at::empty({0}, own.options()));
  Tensors one = none;
  one[static_cast<std::size_t>(root)] = own;
  move(is_root ? of_root : none, one);
}

}  // namespace

bool can_send_in_place(const ProcessGroup& group, const at::Tensor& tensor, at::ScalarType travel_as) {
  return tensor.scalar_type() == travel_as && tensor.device() == group.preferred_device() && is_packed(tensor);
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);  // A single element may have any stride.
}

Tensors bytes_of(const Tensors& tensors) {
  Tensors bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

std::span<std::byte> span_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.data_ptr()), bytes.nbytes()};
}

void exchange_bytes(const ProcessGroup& group, const Tensors& to, const Tensors& from) {
  if (C10dGroup* const c10d = group.c10d()) return c10d->exchange(to, from);
  std::vector<std::span<const std::byte>> out;
  std::vector<std::span<std::byte>> in;
  for (const at::Tensor& tensor : to) out.emplace_back(span_of(tensor));
  for (const at::Tensor& tensor : from) in.push_back(span_of(tensor));
  group.group().exchange(out, in);
}

void all_reduce(const at::Tensor& tensor, ReduceOp how, const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr found = group_or_default(group);
  const ProcessGroup& own = member_of(found);
  check_reducible(tensor.scalar_type(), how);
  const at::Tensor wire = packed(own, tensor);
  if (is_native(own, tensor.scalar_type(), how)) {
    own.c10d()->all_reduce(as_real(wire), c10d_op(how));
  } else {
    all_reduce_in_parts(own, wire, how);
  }
  divide_if_mean(wire, own, how);
  if (!wire.is_same(tensor)) tensor.copy_(wire);
}

void broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr found = group_or_default(group);
  const ProcessGroup& own = member_of(found);
  own.global_rank_of(root);
  if (own.rank() == root) {
    const at::Tensor bytes = bytes_of(packed(own, tensor));
    own.c10d() != nullptr ? own.c10d()->broadcast(bytes, root) : own.group().broadcast(span_of(bytes), root);
    return;
  }
  const Landing landing(own, tensor);
  const at::Tensor bytes = bytes_of(landing.wire());
  own.c10d() != nullptr ? own.c10d()->broadcast(bytes, root) : own.group().broadcast(span_of(bytes), root);
  landing.finish();
}

at::Tensor all_gather(const at::Tensor& own, std::int64_t dim, const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr found = group_or_default(group);
  const ProcessGroup& ranks = member_of(found);
  const std::int64_t along = wrapped_dim(dim, own.dim());
  const at::Tensor wire = packed(ranks, own);
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks.size());
  const at::Tensor all = at::empty(sizes, wire.options());
  if (C10dGroup* const c10d = ranks.c10d()) {
    c10d->all_gather(bytes_of(wire), bytes_of(all));
  } else {
    ranks.group().all_gather(span_of(bytes_of(wire)), span_of(bytes_of(all)));
  }
  const at::Tensor here = all.to(own.device());
  return own.dim() == 0 ? here : here.movedim(0, along).flatten(along, along + 1).contiguous();
}

void all_gather_into(const std::vector<at::Tensor>& all, const at::Tensor& own, const ProcessGroupPtr& group) {
  const ProcessGroupPtr found = group_or_default(group);
  all_to_all(Tensors(static_cast<std::size_t>(member_of(found).size()), own), all, found);
}

at::Tensor reduce_scatter(const at::Tensor& whole, ReduceOp how, std::int64_t dim, const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr found = group_or_default(group);
  const ProcessGroup& own = member_of(found);
  check_reducible(whole.scalar_type(), how);
  const at::Tensor rows = packed(own, as_rows(whole, dim, own.size()));
  at::Tensor reduced;
  // Gloo's own function would reduce all parts on all ranks.
  if (is_native(own, whole.scalar_type(), how) && !own.preferred_device().is_cpu()) {
    reduced = at::empty(rows.sizes().slice(1), rows.options());
    own.c10d()->reduce_scatter(as_real(reduced).flatten(), as_real(rows).flatten(), c10d_op(how));
  } else {
    reduced = reduce_parts(own, rows.unbind(), how);
  }
  divide_if_mean(reduced, own, how);
  return reduced.to(whole.device());
}

void all_to_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, const ProcessGroupPtr& group) {
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr found = group_or_default(group);
  const ProcessGroup& own = member_of(found);
  check_count(to, own);
  check_count(from, own);
  Tensors out, in;
  std::vector<Landing> landings;
  for (const at::Tensor& tensor : to) out.push_back(bytes_of(packed(own, tensor)));
  for (const at::Tensor& tensor : from) in.push_back(bytes_of(landings.emplace_back(own, tensor).wire()));
  exchange_bytes(own, out, in);
  for (const Landing& landing : landings) landing.finish();
}

void scatter(const at::Tensor& own, const std::vector<at::Tensor>& parts, int root, const ProcessGroupPtr& group) {
  const ProcessGroupPtr found = group_or_default(group);
  from_or_to_root(own, parts, root, found,
                  [&](const Tensors& whole, const Tensors& one) { all_to_all(whole, one, found); });
}

void gather(const std::vector<at::Tensor>& all, const at::Tensor& own, int root, const ProcessGroupPtr& group) {
  const ProcessGroupPtr found = group_or_default(group);
  from_or_to_root(own, all, root, found,
                  [&](const Tensors& whole, const Tensors& one) { all_to_all(one, whole, found); });
}

}  // namespace shard
