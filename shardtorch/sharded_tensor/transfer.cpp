#include "shardtorch/sharded_tensor/transfer.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/host_link.h"
#include "shardtorch/sharded_tensor/views.h"
#include "shardtorch/sharded_tensor/wire.h"

namespace shard {

namespace {

using Tensors = std::vector<at::Tensor>;

/// All elements of one rank's `tensors`, packed in sequence on the group's device.
struct Parcel {
  Parcel(const ProcessGroup& group, Tensors parts, at::ScalarType travel_as) : tensors(std::move(parts)) {
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      elements += tensor.numel();
    }
    in_place = tensors.size() == 1 && can_send_in_place(group, tensors.front(), travel_as);
    wire = in_place ? tensors.front().detach()
                    : at::empty({elements}, at::TensorOptions(travel_as).device(group.preferred_device()));
  }

  /// Calls with each tensor and its part of the packed memory.
  template <class Each>
  void for_each_part(const Each& each) const {
    if (in_place) return;
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      for_each_pair(tensor, 0, tensor.numel(), wire.narrow(0, begin, tensor.numel()), each);
      begin += tensor.numel();
    }
  }
  void pack() const {
    for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
  }
  void unpack() const {
    for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
  }

  Tensors tensors;
  at::Tensor wire;
  bool in_place = false;
};

Tensors wires(const std::vector<Parcel>& parcels) {
  Tensors tensors;
  for (const Parcel& parcel : parcels) tensors.push_back(bytes_of(parcel.wire));
  return tensors;
}

/// Sends and receives this rank's data through the group's own transport.
class ByGroup {
 public:
  ByGroup(const ProcessGroup& group, Transfer plan) : group_(group) {
    for (Tensors& tensors : plan.to) out_.emplace_back(group, std::move(tensors), plan.travel_as).pack();
    for (Tensors& tensors : plan.from) in_.emplace_back(group, std::move(tensors), plan.travel_as);
  }
  void finish() const {
    exchange_bytes(group_, wires(out_), wires(in_));
    for (const Parcel& parcel : in_) parcel.unpack();
  }

 private:
  const ProcessGroup& group_;
  std::vector<Parcel> out_, in_;
};

void count_wire_bytes(const ProcessGroup& group, const Transfer& plan) {
  for (const auto* const side : {&plan.to, &plan.from}) {
    for (const Tensors& tensors : *side) {
      for (const at::Tensor& tensor : tensors) group.count_wire_bytes(tensor, plan.travel_as);
    }
  }
}

/// Copies the elements that stay on this rank.
struct Own {
  Own(Transfer& plan, std::size_t rank)
      : travel_as(plan.travel_as), from(std::exchange(plan.to[rank], {})), to(std::exchange(plan.from[rank], {})) {}
  void copy() const {
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i].to(travel_as));
  }

  at::ScalarType travel_as;
  Tensors from, to;
};

}  // namespace

at::Tensor empty_for(const ProcessGroup& group, at::IntArrayRef sizes, const at::TensorOptions& options) {
  HostLink* const link = group.host_link();
  return link != nullptr ? link->spare_memory().take(sizes, options) : at::empty(sizes, options);
}

void transfer(const ProcessGroup& group, const std::function<Transfer()>& plan, const Words& facts) {
  const at::NoGradGuard no_grad;
  HostLink* const link = group.host_link();
  std::optional<Own> own;
  std::optional<ByGroup> by_group;
  std::optional<HostMove> by_memory;
  const auto prepare = [&] {
    Transfer planned = plan();
    std::vector<std::string> arguments = std::move(planned.arguments);
    arguments.push_back(c10::str("dtype=", planned.travel_as));
    own.emplace(planned, static_cast<std::size_t>(group.rank()));
    count_wire_bytes(group, planned);
    if (link == nullptr) {
      by_group.emplace(group, std::move(planned));
    } else {
      by_memory.emplace(*link, group.rank(), std::move(planned.to), std::move(planned.from), planned.travel_as);
    }
    return arguments;
  };
  agree_on(group.group(), prepare, facts);
  link != nullptr ? by_memory->finish(group.group()) : by_group->finish();
  own->copy();
}

}  // namespace shard
