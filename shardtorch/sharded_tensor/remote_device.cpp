#include "shardtorch/sharded_tensor/remote_device.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "libshard/catalog/layouts/placement.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/device_text.h"

namespace shard {

namespace {

std::optional<c10::Device> local_device(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const c10::Error&) {
    return std::nullopt;  // The text names a worker.
  }
}

/// The rank in a placement's text, if an int can represent it.
std::optional<int> rank_in(std::string_view placement) {
  const std::optional<std::int64_t> rank = rank_of_placement(placement);
  return rank.has_value() && std::in_range<int>(*rank) ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

}  // namespace

c10::Device device_named(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const c10::Error& error) {
    throw c10::Error(error.msg());
  }
}

RemoteDevice::RemoteDevice(std::string_view text) {
  const auto check = [&](bool fits) {
    SHARD_CHECK_VALUE(fits, "Could not parse remote_device: ", text,
                      ". The valid format is '<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'");
  };
  const std::size_t slash = text.find('/');
  check(slash == text.rfind('/'));
  const std::string worker(text.substr(0, slash));
  if (slash != std::string_view::npos) {
    check(!worker.empty());
    device_ = device_named(std::string(text.substr(slash + 1)));
  } else if (const auto device = local_device(worker)) {
    device_ = *device;
    return;
  }
  rank_ = rank_in(text);
  if (rank_.has_value()) return;
  check(!worker.empty() && worker.find(':') == std::string::npos);
  worker_name_ = worker;
}

RemoteDevice::RemoteDevice(int rank, c10::Device device) : rank_(rank), device_(device) {
  SHARD_CHECK_VALUE(rank >= 0, "the rank of a remote device should be >= 0, found ", rank);
}

std::string RemoteDevice::str() const {
  if (worker_name_.has_value()) return *worker_name_ + "/" + device_.str();
  if (rank_.has_value()) return "rank:" + std::to_string(*rank_) + "/" + device_.str();
  return device_.str();
}

std::ostream& operator<<(std::ostream& out, const RemoteDevice& device) { return out << device.str(); }

}  // namespace shard

std::size_t std::hash<shard::RemoteDevice>::operator()(const shard::RemoteDevice& device) const noexcept {
  const std::size_t who = c10::hash_combine(std::hash<std::optional<std::string>>()(device.worker_name()),
                                            std::hash<std::optional<int>>()(device.rank()));
  return c10::hash_combine(who, std::hash<c10::Device>()(device.device()));
}
