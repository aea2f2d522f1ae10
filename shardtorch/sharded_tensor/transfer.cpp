#include "shardtorch/sharded_tensor/transfer.h"

#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <utility>

#include "shardtorch/sharded_tensor/agree.h"

namespace shard {

namespace {

using Tensors = std::vector<at::Tensor>;

/// All elements of one rank's `tensors`, one after the other, in host memory.
struct Parcel {
  Parcel(Tensors parts, at::ScalarType travel_as) : tensors(std::move(parts)) {
    in_place = tensors.size() == 1 && tensors.front().scalar_type() == travel_as && is_packed_on_host(tensors.front());
    if (in_place) {
      host = tensors.front();
      return;
    }
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) elements += tensor.numel();
    host = at::empty({elements}, travel_as);
  }

  /// Calls with each tensor and its part of the host memory.
  template <class Each>
  void for_each_part(const Each& each) const {
    if (in_place) return;
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      each(tensor, host.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
  void pack() const {
    for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
  }
  void unpack() const {
    for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
  }
  std::span<std::byte> writable_bytes() const {
    return {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()};
  }

  Tensors tensors;
  at::Tensor host;
  bool in_place = false;
};

/// Both sides of this rank's traffic. What it sends itself stays in tensors.
struct Traffic {
  Traffic(Transfer plan, std::size_t own_rank) : travel_as(plan.travel_as) {
    stays_from = std::exchange(plan.to[own_rank], {});
    stays_to = std::exchange(plan.from[own_rank], {});
    for (Tensors& tensors : plan.to) out.emplace_back(std::move(tensors), travel_as).pack();
    for (Tensors& tensors : plan.from) in.emplace_back(std::move(tensors), travel_as);
  }
  void deliver() const {
    for (const Parcel& parcel : in) parcel.unpack();
    for (std::size_t i = 0; i < stays_to.size(); ++i) stays_to[i].copy_(stays_from[i].to(travel_as));
  }

  at::ScalarType travel_as;
  std::vector<Parcel> out, in;
  Tensors stays_from, stays_to;
};

}  // namespace

bool is_packed_on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void transfer(Group& group, const std::function<Transfer()>& plan) {
  const at::NoGradGuard no_grad;
  std::optional<Traffic> traffic;
  agree_on(group, [&] {
    Transfer planned = plan();
    std::vector<std::string> arguments = std::move(planned.arguments);
    arguments.push_back(c10::str("dtype=", planned.travel_as));
    traffic.emplace(std::move(planned), static_cast<std::size_t>(group.rank()));
    return arguments;
  });
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (const Parcel& parcel : traffic->out) to.push_back(parcel.bytes());
  for (const Parcel& parcel : traffic->in) from.push_back(parcel.writable_bytes());
  group.exchange(to, from);
  traffic->deliver();
}

}  // namespace shard
