/// \file Requests over HTTP with libcurl, repeated while the failure may pass. Inside libshard/stores/remote only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/stores/c_store.h"
#include "libshard/stores/remote/signature.h"
#include "libshard/stores/remote/url.h"

namespace shard::stores {

struct HttpRequest {
  std::string method = "GET";
  std::string origin;        ///< "https://host:port".
  std::string target = "/";  ///< The encoded path.
  Query query{};
  Headers headers{};  ///< "host" is added from the origin.
  std::string body{};
  std::span<const std::byte> data{};  ///< The body, instead of `body`. The caller keeps it.
  bool uses_proxy = true;
  bool is_once = false;     ///< libcurl must not send it again by itself when a kept connection is dead.
  bool is_cleanup = false;  ///< Also sent when all else is stopped.
};

/// "host:port" of an origin.
std::string_view authority_of(std::string_view origin);

struct HttpAnswer {
  long status = 0;  ///< 0: there was no answer.
  Headers headers{};
  std::string body{};     ///< At most kMostText bytes, and without the bytes that a sink took.
  std::string failure{};  ///< Why the answer is missing or incomplete; empty: it is complete.
  std::string hint{};     ///< A setting that may help; often empty.
  bool may_pass = false;  ///< A later attempt may succeed.

  bool is_ok() const { return failure.empty() && status >= 200 && status < 300; }
  /// The value of a header, empty if it is missing.
  const std::string& header(std::string_view name) const;
};

/// The largest answer that is not a range, in bytes.
inline constexpr std::size_t kMostText = 8 << 20;

/// Receives the bytes of an answer whose headers have arrived. Returns false to end the request.
using BodySink = std::function<bool(const HttpAnswer& head, std::span<const std::byte> bytes)>;

struct HttpLimits {
  std::chrono::milliseconds connect{10'000};
  std::chrono::milliseconds stall{30'000};  ///< Without a byte for this long, the attempt has failed.
  int attempts = 6;
  std::chrono::milliseconds first_wait{100}, longest_wait{20'000}, longest_asked{60'000};
};

/// The time before attempt `attempt` (1 is the second): any time up to a limit that doubles, after the server's
/// Retry-After. \param random  in [0, 1)
std::chrono::milliseconds wait_before(int attempt, const HttpAnswer& answer, const HttpLimits& limits, double random);

/// Connections to any hosts, kept for later requests. Threads: safe.
class Transport {
 public:
  /// `listener` must outlive this.
  Transport(const HttpLimits& limits, const StoreListener& listener);
  ~Transport();

  const HttpLimits& limits() const { return limits_; }
  /// Sends a request once. \throws Error kInterrupted
  HttpAnswer send_once(const HttpRequest& request, const HttpLimits& limits, const BodySink& sink = {});
  /// Sends a request until it is answered, at most limits().attempts times. `make` creates it again for each attempt,
  /// because signatures expire. \throws Error kInterrupted
  HttpAnswer send(const std::function<HttpRequest()>& make, const BodySink& sink = {});
  /// Waits before the next attempt, and reports it. \throws Error kInterrupted
  void wait(int attempt, const HttpAnswer& answer, std::string_view authority);
  /// From now on, all requests fail with kInterrupted.
  void close() { is_closed_ = true; }

 private:
  class Connection;
  bool is_stopped() const;
  std::unique_ptr<Connection> take();
  void give_back(std::unique_ptr<Connection> connection);

  const HttpLimits limits_;
  const StoreListener& listener_;
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace shard::stores
