#include "shardtorch/sharded_tensor/transfer.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/wire.h"

namespace shard {

namespace {

using Tensors = std::vector<at::Tensor>;

/// All elements of one rank's `tensors`, one after the other on the group's device.
struct Parcel {
  Parcel(const ProcessGroup& group, Tensors parts, at::ScalarType travel_as) : tensors(std::move(parts)) {
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      group.count_wire_bytes(tensor, travel_as);
      elements += tensor.numel();
    }
    in_place = tensors.size() == 1 && travels_as_it_lies(group, tensors.front(), travel_as);
    wire = in_place ? tensors.front().detach()
                    : at::empty({elements}, at::TensorOptions(travel_as).device(group.preferred_device()));
  }

  /// Calls with each tensor and its part of the packed memory.
  template <class Each>
  void for_each_part(const Each& each) const {
    if (in_place) return;
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      each(tensor, wire.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
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

/// Both sides of this rank's traffic. What it sends itself stays in tensors.
struct Traffic {
  Traffic(const ProcessGroup& group, Transfer plan) : travel_as(plan.travel_as) {
    const auto own_rank = static_cast<std::size_t>(group.rank());
    stays_from = std::exchange(plan.to[own_rank], {});
    stays_to = std::exchange(plan.from[own_rank], {});
    for (Tensors& tensors : plan.to) out.emplace_back(group, std::move(tensors), travel_as).pack();
    for (Tensors& tensors : plan.from) in.emplace_back(group, std::move(tensors), travel_as);
  }
  void deliver() const {
    for (const Parcel& parcel : in) parcel.unpack();
    for (std::size_t i = 0; i < stays_to.size(); ++i) stays_to[i].copy_(stays_from[i].to(travel_as));
  }

  at::ScalarType travel_as;
  std::vector<Parcel> out, in;
  Tensors stays_from, stays_to;
};

Tensors wires(const std::vector<Parcel>& parcels) {
  Tensors tensors;
  for (const Parcel& parcel : parcels) tensors.push_back(bytes_of(parcel.wire));
  return tensors;
}

}  // namespace

bool is_packed_on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void transfer(const ProcessGroup& group, const std::function<Transfer()>& plan) {
  const at::NoGradGuard no_grad;
  std::optional<Traffic> traffic;
  agree_on(group.group(), [&] {
    Transfer planned = plan();
    std::vector<std::string> arguments = std::move(planned.arguments);
    arguments.push_back(c10::str("dtype=", planned.travel_as));
    traffic.emplace(group, std::move(planned));
    return arguments;
  });
  exchange_bytes(group, wires(traffic->out), wires(traffic->in));
  traffic->deliver();
}

}  // namespace shard
