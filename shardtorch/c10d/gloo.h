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

/// The network interface for Gloo: $GLOO_SOCKET_IFNAME, or else the loopback if all ranks are on one host, or else the
/// host's own. Groups of one process may share it.
std::shared_ptr<::gloo::transport::Device> gloo_device(bool is_one_host);

/// Creates the group of the ranks that connect through `store`. All of them call it. \throws Error kPeer  a rank does
/// not connect.
std::unique_ptr<Group> make_gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                       std::shared_ptr<::gloo::transport::Device> device,
                                       std::chrono::milliseconds timeout);

}  // namespace shard
