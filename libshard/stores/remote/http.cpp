#include "libshard/stores/remote/http.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/random_bytes.h"
#include "libshard/stores/remote/headers.h"

namespace shard::stores {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollTime{50};  ///< Time until a request notices that it should stop.

/// libcurl reads none of these variables itself, and a static one knows no file of certificates.
constexpr std::array kCertificateVariables{"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"};
constexpr std::array kCertificateFiles{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                       "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

struct Certificates {
  std::string file, named_by;
};

Certificates find_certificates() {
  for (const char* const variable : kCertificateVariables) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return {value, fmt::format("the file {} that {} names", value, variable)};
  }
  for (const char* const file : kCertificateFiles) {
    if (::access(file, R_OK) == 0) return {file, file};
  }
  return {"", "libcurl's own list"};
}

double random_part() {
  std::uint32_t number = 0;
  draw_random(std::as_writable_bytes(std::span(&number, 1)));
  return static_cast<double>(number) / 4294967296.0;
}

Error stopped() { return Error(ErrorCode::kInterrupted, "interrupted"); }

bool may_pass(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

bool may_pass(long status) {
  constexpr long kNotImplemented = 501;
  return status == 408 || status == 429 || (status >= 500 && status != kNotImplemented);
}

/// Records the failure, and how certificates that were not accepted can be.
void explain(CURLcode code, const char* detail, const Certificates& certificates, HttpAnswer& answer) {
  answer.failure = *detail != '\0' ? detail : curl_easy_strerror(code);
  if (code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE) return;
  answer.failure += fmt::format(" (certificates are from {})", certificates.named_by);
  answer.hint = "set AWS_CA_BUNDLE to a file with the certificate of the server's authority";
}

/// A hint for a request that the proxy refused, with the status of its answer; empty if none did.
std::string proxy_hint(CURL* easy, long status) {
  constexpr long kUnauthorized = 401, kNeedsPassword = 407;
  long connect_status = 0;  // The proxy's answer if it should connect to a server of https://.
  curl_easy_getinfo(easy, CURLINFO_HTTP_CONNECTCODE, &connect_status);
  if (status == kNeedsPassword || connect_status == kNeedsPassword || connect_status == kUnauthorized)
    return "the proxy needs a valid user and password: its variable may be http://USER:PASSWORD@HOST:PORT";
  if (connect_status >= 300)
    return "the proxy does not connect to this server; to reach it without the proxy, name it in no_proxy";
  return {};
}

}  // namespace

std::string_view authority_of(std::string_view origin) { return origin.substr(origin.find("://") + 3); }

const std::string& HttpAnswer::header(std::string_view name) const {
  static const std::string kNone;
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? kNone : found->second;
}

milliseconds wait_before(int attempt, const HttpAnswer& answer, const HttpLimits& limits, double random) {
  const auto doubled = limits.first_wait * (std::int64_t{1} << std::min(attempt, 16));
  const auto most = std::min<milliseconds>(limits.longest_wait, doubled);
  milliseconds asked{0};
  const std::string& text = answer.header("retry-after");
  if (const auto seconds = parse_natural<std::int64_t>(text)) {
    asked = std::min(limits.longest_asked, milliseconds(1000) * std::min<std::int64_t>(*seconds, 3600));
  } else if (const std::time_t date = text.empty() ? -1 : curl_getdate(text.c_str(), nullptr); date > 0) {
    const std::int64_t left = std::clamp<std::int64_t>(date - std::time(nullptr), 0, 3600);
    asked = std::min(limits.longest_asked, milliseconds(1000) * left);
  }
  return asked + milliseconds(static_cast<std::int64_t>(static_cast<double>(most.count()) * random));
}

/// One connection, with the handles of libcurl. Threads: one at a time.
class Transport::Connection {
 public:
  Connection() : easy_(curl_easy_init()), multi_(curl_multi_init()) {
    if (easy_ == nullptr || multi_ == nullptr) throw std::bad_alloc();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    curl_multi_cleanup(multi_);
    curl_easy_cleanup(easy_);
    curl_slist_free_all(list_);
  }

  HttpAnswer perform(const HttpRequest& request, const HttpLimits& limits, const BodySink& sink,
                     const std::function<bool()>& is_stopped) {
    HttpAnswer answer;
    state_ = {.easy = easy_, .answer = &answer, .sink = &sink};
    const Certificates certificates = find_certificates();
    prepare(request, limits, certificates);
    curl_multi_add_handle(multi_, easy_);
    const CURLcode code = run(limits, is_stopped);
    curl_multi_remove_handle(multi_, easy_);
    if (state_.exception) std::rethrow_exception(state_.exception);
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &answer.status);
    if (is_stopped()) throw stopped();
    if (state_.is_ended) {
      if (answer.failure.empty()) answer.failure = "the answer was refused";
    } else if (code != CURLE_OK) {
      explain(code, error_.data(), certificates, answer);
      answer.may_pass = shard::stores::may_pass(code);
    } else {
      answer.may_pass = shard::stores::may_pass(answer.status);
    }
    if (answer.hint.empty()) answer.hint = proxy_hint(easy_, answer.status);
    return answer;
  }

 private:
  struct State {
    CURL* easy = nullptr;
    HttpAnswer* answer = nullptr;
    const BodySink* sink = nullptr;
    bool is_ended = false;           ///< By the sink or a limit.
    std::exception_ptr exception{};  ///< From a callback.
    std::int64_t received = 0;
  };

  template <class Value>
  void set(CURLoption option, Value value) {
    curl_easy_setopt(easy_, option, value);
  }

  void prepare(const HttpRequest& request, const HttpLimits& limits, const Certificates& certificates) {
    curl_easy_reset(easy_);  // The connection and the cache of names remain.
    const std::string query = query_text(request.query);
    const std::string url = request.origin + request.target + (query.empty() ? "" : "?" + query);
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 0L);
    // HTTP/2 would share one TCP window between all requests.
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_BUFFERSIZE, 128L << 10);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limits.connect.count()));
    set(CURLOPT_USERAGENT, "shardctl");
    if (!request.uses_proxy) set(CURLOPT_PROXY, "");
    if (!certificates.file.empty()) set(CURLOPT_CAINFO, certificates.file.c_str());
    error_[0] = '\0';
    set(CURLOPT_ERRORBUFFER, error_.data());
    set(CURLOPT_HEADERFUNCTION, &on_header);
    set(CURLOPT_HEADERDATA, &state_);
    set(CURLOPT_WRITEFUNCTION, &on_body);
    set(CURLOPT_WRITEDATA, &state_);
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request.method != "GET") {
      const std::span<const std::byte> data =
          request.data.empty() ? std::as_bytes(std::span(request.body)) : request.data;
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(data.size()));
      set(CURLOPT_POSTFIELDS, data.empty() ? "" : reinterpret_cast<const char*>(data.data()));
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
      set(CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
    }
    if (request.is_once) set(CURLOPT_FRESH_CONNECT, 1L);
    curl_slist_free_all(list_);
    list_ = nullptr;
    if (request.method == "PUT") list_ = curl_slist_append(list_, "Expect:");  // The server need not agree first.
    for (const auto& [name, value] : request.headers) {
      list_ = curl_slist_append(list_, (value.empty() ? name + ";" : name + ": " + value).c_str());
    }
    set(CURLOPT_HTTPHEADER, list_);
  }

  /// Runs the transfer until it ends, stalls or should stop.
  CURLcode run(const HttpLimits& limits, const std::function<bool()>& is_stopped) {
    Clock::time_point last = Clock::now();
    std::int64_t seen = 0;
    for (int running = 1; running > 0;) {
      if (curl_multi_perform(multi_, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      if (running == 0 || is_stopped()) break;
      curl_off_t sent = 0;
      curl_easy_getinfo(easy_, CURLINFO_SIZE_UPLOAD_T, &sent);
      if (state_.received + sent - seen >= kLeastProgress) {
        seen = state_.received + sent;
        last = Clock::now();
      } else if (Clock::now() - last > limits.stall) {
        state_.answer->failure = fmt::format("no data for {} s", limits.stall.count() / 1000);
        state_.answer->may_pass = true;
        state_.is_ended = true;
        break;
      }
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(kPollTime.count()), nullptr);
    }
    int left = 0;
    const CURLMsg* const message = curl_multi_info_read(multi_, &left);
    return message == nullptr ? CURLE_OK : message->data.result;
  }

  static std::size_t on_header(char* data, std::size_t, std::size_t bytes, void* place) noexcept {
    State& state = *static_cast<State*>(place);
    try {
      state.received += static_cast<std::int64_t>(bytes);
      add_header(*state.answer, {data, bytes});
      return bytes;
    } catch (...) {
      state.exception = std::current_exception();
      return 0;
    }
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t bytes, void* place) noexcept {
    State& state = *static_cast<State*>(place);
    try {
      HttpAnswer& answer = *state.answer;
      state.received += static_cast<std::int64_t>(bytes);
      curl_easy_getinfo(state.easy, CURLINFO_RESPONSE_CODE, &answer.status);
      const bool is_for_sink = *state.sink && answer.status >= 200 && answer.status < 300;
      if (is_for_sink) {
        state.is_ended = !(*state.sink)(answer, std::as_bytes(std::span(data, bytes)));
      } else if (answer.body.size() + bytes > kMostText) {
        state.is_ended = true;
        answer.failure = fmt::format("the answer has more than {} bytes", kMostText);
      } else {
        answer.body.append(data, bytes);
      }
      return state.is_ended ? 0 : bytes;
    } catch (...) {
      state.exception = std::current_exception();
      return 0;
    }
  }

  /// Bytes in HttpLimits::stall. A slower answer would never end.
  static constexpr std::int64_t kLeastProgress = 1024;

  CURL* const easy_;
  CURLM* const multi_;
  curl_slist* list_ = nullptr;
  State state_;
  std::array<char, CURL_ERROR_SIZE> error_{};
};

Transport::Transport(const HttpLimits& limits, const StoreListener& listener) : limits_(limits), listener_(listener) {
  static const CURLcode kStarted = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (kStarted != CURLE_OK)
    throw Error(ErrorCode::kResource, "cannot start libcurl").because(curl_easy_strerror(kStarted));
}

Transport::~Transport() = default;

bool Transport::is_stopped() const { return is_closed_ || listener_.is_stopped(listener_.place); }

std::unique_ptr<Transport::Connection> Transport::take() {
  const std::scoped_lock lock(mutex_);
  if (idle_.empty()) return std::make_unique<Connection>();
  std::unique_ptr<Connection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

void Transport::give_back(std::unique_ptr<Connection> connection) {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(connection));
}

HttpAnswer Transport::send_once(const HttpRequest& request, const HttpLimits& limits, const BodySink& sink) {
  const auto is_over = [this, &request] { return is_closed_ || (!request.is_cleanup && is_stopped()); };
  if (is_over()) throw stopped();
  std::unique_ptr<Connection> connection = take();
  HttpAnswer answer = connection->perform(request, limits, sink, is_over);
  give_back(std::move(connection));
  return answer;
}

HttpAnswer Transport::send(const std::function<HttpRequest()>& make, const BodySink& sink) {
  for (int attempt = 1;; ++attempt) {
    const HttpRequest request = make();
    HttpAnswer answer = send_once(request, limits_, sink);
    if (!answer.may_pass || attempt >= limits_.attempts) return answer;
    wait(attempt, answer, authority_of(request.origin));
  }
}

void Transport::wait(int attempt, const HttpAnswer& answer, std::string_view authority) {
  const std::string why = answer.failure.empty() ? fmt::format("HTTP {}", answer.status) : answer.failure;
  const std::string text =
      fmt::format("waiting for {} ({}, attempt {} of {})", authority, why, attempt + 1, limits_.attempts);
  listener_.waits(listener_.place, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  const Clock::time_point end = Clock::now() + wait_before(attempt, answer, limits_, random_part());
  while (Clock::now() < end) {
    if (is_stopped()) throw stopped();
    std::this_thread::sleep_for(std::min<Clock::duration>(kPollTime, end - Clock::now()));
  }
}

}  // namespace shard::stores
