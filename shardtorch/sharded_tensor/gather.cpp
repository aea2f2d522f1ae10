#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard {

namespace {

/// \throws c10::ValueError  `out` is invalid on the destination, or is given on a different rank.
void check_out(const std::optional<at::Tensor>& out, bool is_destination, int destination, at::IntArrayRef size) {
  if (!is_destination) {
    SHARD_CHECK_VALUE(!out.has_value(), "Argument ``dst_tensor`` must NOT be specified on non-destination ranks.");
    return;
  }
  SHARD_CHECK_VALUE(out.has_value() && out->defined(), "Argument ``dst_tensor`` must be specified on destination rank ",
                    destination);
  SHARD_CHECK_VALUE(out->sizes() == size, "Argument ``dst_tensor`` have size ", out->sizes(), ",but should be ", size);
  SHARD_CHECK_VALUE(!out->is_meta(), "Argument ``dst_tensor`` is a meta tensor: it has no elements to write");
  at::assert_no_internal_overlap(*out);
}

/// This rank's shards by their offsets, without empty ones.
std::map<Sizes, at::Tensor> own_by_offsets(const std::vector<Shard>& shards) {
  std::map<Sizes, at::Tensor> found;
  for (const Shard& shard : shards) {
    if (shard.tensor.numel() > 0) found.emplace(shard.metadata.shard_offsets, shard.tensor);
  }
  return found;
}

const at::Tensor& tensor_of(const std::map<Sizes, at::Tensor>& own, const ShardMetadata& shard) {
  const auto found = own.find(shard.shard_offsets);
  SHARD_CHECK(found != own.end() && found->second.sizes() == at::IntArrayRef(shard.shard_sizes),
              "This rank has no local shard for ", shard);
  return found->second;
}

/// Requests large pages for memory that is about to be written, because faults of small pages in new memory cost more
/// than the copies. Only a hint: if the system does not support it, or the memory already has pages, nothing changes.
void ask_for_large_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::size_t kWorthIt = 16 << 20;
  if (!tensor.is_cpu() || tensor.storage().nbytes() < kWorthIt) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(tensor.storage().data()) + kPage - 1) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), tensor.storage().nbytes() - kPage, MADV_HUGEPAGE);
}

/// Gathers to `dst`. `out` is undefined on all other ranks.
Transfer plan_gather(const ShardedTensorImpl& tensor, at::ScalarType travel_as, int destination,
                     const at::Tensor& out) {
  const ProcessGroup& group = *tensor.group;
  const std::map<Sizes, at::Tensor> own = own_by_offsets(tensor.local_shards);
  Transfer plan(group.size(), travel_as);
  plan.arguments = {c10::str("dst=", destination)};
  for (const ShardMetadata& shard : tensor.metadata.shards_metadata) {
    if (c10::multiply_integers(shard.shard_sizes) == 0) continue;
    const std::size_t owner = owner_in(group, shard);
    if (owner == static_cast<std::size_t>(group.rank()))
      plan.to[static_cast<std::size_t>(destination)].push_back(tensor_of(own, shard));
    if (out.defined()) plan.from[owner].push_back(narrow_tensor(out, shard));
  }
  return plan;
}

/// Sends every rank's shards to all ranks.
Transfer plan_all_gather(const ShardedTensorImpl& tensor, const at::Tensor& whole) {
  const ProcessGroup& group = *tensor.group;
  const std::map<Sizes, at::Tensor> own = own_by_offsets(tensor.local_shards);
  Transfer plan(group.size(), whole.scalar_type());
  for (const ShardMetadata& shard : tensor.metadata.shards_metadata) {
    if (c10::multiply_integers(shard.shard_sizes) == 0) continue;
    const std::size_t owner = owner_in(group, shard);
    plan.from[owner].push_back(narrow_tensor(whole, shard));
    if (owner != static_cast<std::size_t>(group.rank())) continue;
    for (auto& to : plan.to) to.push_back(tensor_of(own, shard));
  }
  return plan;
}

using MakeOut = std::function<std::optional<at::Tensor>()>;

/// Gathers to `dst`. `make_out` returns the argument `dst_tensor`. An error of it is thrown on all ranks.
void gather_into(const ShardedTensor& tensor, int dst, at::ScalarType travel_as, const MakeOut& make_out) {
  const ShardedTensorImpl& impl = impl_of(tensor);
  const ProcessGroupPtr& group = impl.checked_group();
  const bool is_destination = group->is_member() && group->rank() == dst;
  if (!group->is_member()) return check_out(make_out(), is_destination, dst, tensor.sizes());
  const auto plan = [&] {
    SHARD_CHECK_VALUE(dst >= 0 && dst < group->size(), "Destination rank ", dst, " is not in a group of ",
                      group->size());
    const std::optional<at::Tensor> out = make_out();
    check_out(out, is_destination, dst, tensor.sizes());
    if (is_destination) ask_for_large_pages(*out);
    return plan_gather(impl, travel_as, dst, is_destination ? *out : at::Tensor());
  };
  transfer(*group, plan, facts_of(impl.metadata));
}

}  // namespace

void ShardedTensor::gather(int dst, const std::optional<at::Tensor>& out, const GatherOptions& options) const {
  if (options.enforce_dtype) {
    TORCH_WARN_ONCE("`enforce_dtype` is deprecated. Please use `dtype` instead.");
  }
  const at::ScalarType own_dtype = dtype();
  const at::ScalarType travel_as = options.enforce_dtype ? own_dtype : options.dtype.value_or(own_dtype);
  gather_into(*this, dst, travel_as, [&] { return out; });
}

at::Tensor ShardedTensor::gather_to(int dst) const {
  std::optional<at::Tensor> out;
  gather_into(*this, dst, dtype(), [&] {
    const ProcessGroup& group = *process_group();
    if (group.rank() == dst) out = empty_for(group, sizes(), at::TensorOptions(dtype()).device(device()));
    return out;
  });
  return out.value_or(at::Tensor());
}

at::Tensor full_tensor(const ShardedTensor& tensor, const std::vector<std::string>& more) {
  const ShardedTensorImpl& impl = impl_of(tensor);
  const ProcessGroupPtr& group = impl.checked_group();
  group->member_group();
  std::vector<std::string> facts = facts_of(impl.metadata);
  facts.insert(facts.end(), more.begin(), more.end());
  at::Tensor whole;
  const auto plan = [&] {
    whole = empty_for(*group, tensor.sizes(), at::TensorOptions(tensor.dtype()).device(tensor.device()));
    return plan_all_gather(impl, whole);
  };
  transfer(*group, plan, facts);
  return whole;
}

at::Tensor ShardedTensor::full_tensor() const { return shard::full_tensor(*this, {}); }

}  // namespace shard
