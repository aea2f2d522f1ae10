#include "shardtorch/c10d/listening_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace shard {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

std::optional<ListeningSocket> listen_on(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // A port may be used again right after a job.
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    close(fd);
    return std::nullopt;
  }
  const bool is_v6 = bound.ss_family == AF_INET6;
  const in_port_t port = is_v6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                               : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return ListeningSocket{fd, ntohs(port)};
}

}  // namespace

std::optional<ListeningSocket> listen_at(const std::string& host, std::uint16_t port) {
  const Addresses all = addresses_of(host, port);
  for (const addrinfo* each = all.get(); each != nullptr; each = each->ai_next) {
    if (const auto socket = listen_on(*each)) return socket;
  }
  return std::nullopt;
}

}  // namespace shard
