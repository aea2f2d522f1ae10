/// \file
/// Groups over c10d's Gloo backend.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libshard/ranks/group.h"

namespace gloo::transport {
class Device;
}

namespace shard {

/// The network interface for Gloo: $GLOO_SOCKET_IFNAME, or else the loopback for ranks on one host and the host's own
/// for several. Groups of one process may share it.
std::shared_ptr<::gloo::transport::Device> gloo_device(bool is_one_host);

/// Forms the group of the ranks that meet in `store`; all call it. \throws Error kPeer  a rank does not come.
std::unique_ptr<Group> make_gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                       std::shared_ptr<::gloo::transport::Device> device,
                                       std::chrono::milliseconds timeout);

}  // namespace shard
