/// \file
/// A TCP socket that listens at one address. torch's own store listens at all of a host's addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shard {

struct ListeningSocket {
  int descriptor = -1;  ///< The caller's to close, or to give away.
  std::uint16_t port = 0;
};

/// Listens at `host`, a name or a number, and `port`; 0: any free one.
/// \returns nothing if the host has no such address, or the port is in use.
std::optional<ListeningSocket> listen_at(const std::string& host, std::uint16_t port);

}  // namespace shard
