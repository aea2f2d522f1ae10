#include "libshard/stores/remote/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libshard/core/parse_number.h"
#include "libshard/io/source_store.h"
#include "libshard/io/url_path.h"
#include "libshard/stores/remote/headers.h"

namespace shard::stores {

namespace {

constexpr int kMostRedirects = 5;
constexpr const char* kWrongRange = "the answer has a different range";

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// S3's errors with status 400 that pass: its own clients repeat these requests too.
bool is_passing(std::string_view code) { return code == "RequestTimeout" || code == "BadDigest"; }

bool is_weak(std::string_view etag) { return etag.starts_with("W/"); }

Error no_ranges(const std::string& url) {
  return Error(ErrorCode::kUnsupported, "cannot read parts of the file: the server does not support ranges")
      .in_file(url)
      .expected("status 206 with a Content-Range")
      .found("status 200 with the whole file")
      .hint("download the file first");
}

}  // namespace

/// Takes the bytes of one ranged answer after checking that it is the range that was requested.
class Place::RangeSink {
 public:
  enum class Problem { kNone, kNoRanges, kOtherRange, kChanged, kTooLong };

  /// Receives bytes and their position in the range.
  using Take = std::function<void(std::size_t position, std::span<const std::byte> bytes)>;

  RangeSink(const Object& object, bool is_first, std::int64_t offset, std::int64_t bytes, Take take)
      : object_(object), is_first_(is_first), offset_(offset), bytes_(bytes), take_(std::move(take)) {}
  /// Fills `out`, also again from its begin.
  RangeSink(const Object& object, bool is_first, std::int64_t offset, std::span<std::byte> out)
      : RangeSink(object, is_first, offset, std::ssize(out), [out](std::size_t position, auto bytes) {
          std::memcpy(out.data() + position, bytes.data(), bytes.size());
        }) {
    may_repeat_ = true;
  }

  std::size_t done() const { return done_; }
  Problem problem() const { return problem_; }
  std::int64_t total() const { return total_; }
  /// The error for answers with wrong ranges.
  Error other_range(const std::string& url) const {
    return Error(ErrorCode::kCorruption, "the server sends a different range from the one requested")
        .in_file(url)
        .expected(fmt::format("bytes {}-{}", begin(), end() - 1))
        .found(found_.empty() ? "no Content-Range" : found_);
  }

  /// Prepares for the next attempt, which continues after the bytes that arrived.
  void begin_attempt() {
    is_checked_ = false;
    problem_ = Problem::kNone;
  }
  std::int64_t begin() const { return offset_ + static_cast<std::int64_t>(done_); }
  std::int64_t end() const { return offset_ + bytes_; }
  /// Whether another attempt can continue. After an answer with too many bytes it cannot, because some were passed on.
  bool may_continue() const { return may_repeat_ || problem_ != Problem::kTooLong; }

  bool take(const HttpAnswer& head, std::span<const std::byte> bytes) {
    if (!is_checked_ && !accepts(head)) return false;
    is_checked_ = true;
    if (bytes.size() > wanted_ - done_) return problem_ = Problem::kTooLong, done_ = 0, false;
    take_(done_, bytes);
    done_ += bytes.size();
    return true;
  }
  /// True once all bytes arrived, also if the connection then failed.
  bool is_complete() const { return is_checked_ && problem_ == Problem::kNone && done_ == wanted_; }

 private:
  bool accepts(const HttpAnswer& head) {
    if (head.status != 206) return problem_ = Problem::kNoRanges, false;
    found_ = head.header("content-range");
    const std::optional<ContentRange> range = parse_content_range(found_);
    const std::int64_t last = is_first_ && range ? std::min(end(), range->total) : end();
    if (!range || range->begin != begin() || range->end != last) return problem_ = Problem::kOtherRange, false;
    const std::string& length = head.header("content-length");
    if (!length.empty() && parse_natural(length) != last - begin()) {
      const std::string& encoding = head.header("content-encoding");
      found_ += fmt::format(" with Content-Length {}", length);
      if (!encoding.empty()) found_ += fmt::format(" and Content-Encoding {}", encoding);
      return problem_ = Problem::kOtherRange, false;
    }
    const std::string& etag = head.header("etag");
    const std::string& modified = head.header("last-modified");
    const bool is_other = (!object_.etag.empty() && !etag.empty() && etag != object_.etag) ||
                          (object_.etag.empty() && !object_.modified.empty() && modified != object_.modified);
    if (is_other || (!is_first_ && range->total != object_.bytes)) return problem_ = Problem::kChanged, false;
    total_ = range->total;
    wanted_ = static_cast<std::size_t>(last - offset_);
    return true;
  }

  const Object& object_;
  const bool is_first_;
  const std::int64_t offset_;
  const std::int64_t bytes_;
  const Take take_;
  bool may_repeat_ = false;  ///< Whether `take_` may receive a position twice.
  std::size_t done_ = 0, wanted_ = 0;
  std::int64_t total_ = 0;
  bool is_checked_ = false;
  Problem problem_ = Problem::kNone;
  std::string found_;
};

std::string Place::url_of(std::string_view key) const { return key.empty() ? root_ : fmt::format("{}/{}", root_, key); }

Error Place::failed(const HttpAnswer& answer, const std::string& url, ErrorCode of) const {
  const std::string code = error_code(answer);
  const std::string shown = answer.status == 0 ? answer.failure
                            : code.empty()     ? fmt::format("HTTP {}", answer.status)
                                               : fmt::format("HTTP {} {}", answer.status, code);
  Error error(of, of == ErrorCode::kResource ? "cannot write to the server" : "cannot read from the server");
  if (answer.status == 404 && of == ErrorCode::kNotFound) {
    error = Error(ErrorCode::kNotFound, "no such file or folder").of_kind(FindingKind::kMissingFile);
  } else if (answer.status == 401 || answer.status == 403) {
    error = Error(of, "the server refuses access");
  } else if (answer.status == 0) {
    error = Error(of, "cannot reach the server");
  }
  error.in_file(url).because(answer.status != 0 && !answer.failure.empty() ? answer.failure : shown);
  if (!answer.hint.empty()) error.hint(answer.hint);
  explain(answer, code, error);
  return error;
}

HttpAnswer Place::ask(const std::function<HttpRequest()>& make, const std::string& url) {
  HttpAnswer answer = ask_any(make, url);
  if (!answer.is_ok()) throw failed(answer, url);
  return answer;
}

HttpAnswer Place::ask_any(const std::function<HttpRequest()>& make, const std::string& url) {
  std::optional<Address> address;
  int redirects = 0;
  for (bool is_mended = false;;) {
    HttpRequest sent;
    HttpAnswer answer = transport_.send([&] {
      sent = make();
      direct(sent, address);
      return sent;
    });
    if (answer.is_ok()) return answer;
    if (!is_mended && mend(answer)) {
      is_mended = true;
    } else if (follows_redirects() && is_redirect(answer.status) && redirects < kMostRedirects) {
      ++redirects;  // A hub redirects the old name of a model.
      address = redirected(url, sent, answer);
    } else {
      return answer;
    }
  }
}

HttpAnswer Place::send(const Change& change) {
  constexpr std::chrono::milliseconds kShort{2'000}, kSlow{600'000};
  HttpLimits limits = transport_.limits();
  if (change.is_cleanup) {
    limits.connect = limits.stall = std::min(limits.stall, kShort);
    limits.attempts = std::min(limits.attempts, 3);
  }
  if (change.is_slow) limits.stall = std::max(limits.stall, kSlow);
  bool is_mended = false;
  for (int attempt = 1;;) {
    HttpRequest request = request_of(change.key);
    request.method = change.method;
    request.query = change.query;
    for (const auto& [name, value] : change.headers) request.headers[name] = value;
    request.data = change.data;
    request.is_once = change.is_once;
    request.is_cleanup = change.is_cleanup;
    authorize(request);
    HttpAnswer answer = transport_.send_once(request, limits);
    if (answer.status == 400 && is_passing(error_code(answer))) answer.may_pass = true;
    if (!is_mended && answer.status >= 300 && answer.status < 500 && answer.status != 404 && answer.status != 412 &&
        mend(answer)) {
      is_mended = true;
      continue;
    }
    if (change.is_once || !answer.may_pass || attempt >= limits.attempts) return answer;
    transport_.wait(attempt++, answer, authority_of(request.origin));
  }
}

HttpRequest Place::ranged(const Object& object, std::int64_t begin, std::int64_t end,
                          const std::optional<Address>& address) {
  HttpRequest request = request_of(object.key);
  request.headers["range"] = fmt::format("bytes={}-{}", begin, end - 1);
  // A weak ETag never matches. It is compared with the answer's.
  if (!object.etag.empty() && !is_weak(object.etag)) request.headers["if-match"] = object.etag;
  direct(request, address);
  return request;
}

/// Sends a request to the address to which it was redirected. Only the place itself receives credentials.
void Place::direct(HttpRequest& request, const std::optional<Address>& address) {
  const bool is_elsewhere = address && address->origin != request.origin;
  if (address) {
    request.origin = address->origin;
    request.target = address->target;
    request.query.clear();
  }
  if (!is_elsewhere) authorize(request);
}

std::optional<Place::Address> Place::redirect_of(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  const auto found = redirects_.find(key);
  return found == redirects_.end() ? std::nullopt : std::optional(found->second);
}

bool Place::forget_redirect(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  return redirects_.erase(key) > 0;
}

/// The address to which an answer redirects a request for `url`. \throws Error kNotFound  it is refused
Place::Address Place::redirected(const std::string& url, const HttpRequest& request, const HttpAnswer& answer) const {
  const std::string to = encode_illegal(answer.header("location"));
  Address address{request.origin, to};
  const std::string_view scheme = url_scheme(to);
  if (!scheme.empty()) {
    const std::size_t end = std::min(to.find_first_of("/?", scheme.size() + 3), to.size());
    address = {to.substr(0, end), end < to.size() && to[end] == '/' ? to.substr(end) : "/" + to.substr(end)};
  }
  const std::string_view from_host = authority_of(request.origin), to_host = authority_of(address.origin);
  const char* why = nullptr;
  if (!follows_redirects()) why = "a signed request is never redirected";
  if (address.target.empty() || address.target.front() != '/') why = "it names no address";
  if (!scheme.empty() && scheme != "https" && scheme != "http") why = "it leaves HTTP";
  if (request.origin.starts_with("https:") && !address.origin.starts_with("https:")) why = "it leaves HTTPS";
  if (is_private(to_host) && !is_private(from_host)) why = "it leads from a public into a private network";
  if (why != nullptr) {
    throw Error(ErrorCode::kNotFound, "cannot follow the server's redirect").in_file(url).because(why);
  }
  return address;
}

void Place::follow(const std::string& key, const HttpRequest& request, const HttpAnswer& answer) {
  Address address = redirected(url_of(key), request, answer);
  const std::scoped_lock lock(mutex_);
  redirects_[key] = std::move(address);
}

void Place::read(const Object& object, std::int64_t offset, std::span<std::byte> out) {
  if (out.empty()) return;
  RangeSink sink(object, object.bytes < 0, offset, out);
  fetch(object, sink);
}

void Place::stream(const Object& object, std::int64_t offset, std::int64_t bytes, const ByteTaker& take) {
  if (bytes == 0) return;
  RangeSink sink(object, object.bytes < 0, offset, bytes, [&take](std::size_t, auto arrived) { take(arrived); });
  fetch(object, sink);
}

void Place::fetch(const Object& object, RangeSink& sink) {
  const std::string url = url_of(object.key);
  int redirects = 0;
  bool is_mended = false;
  for (int attempt = 1;;) {
    const std::optional<Address> address = redirect_of(object.key);
    const HttpRequest request = ranged(object, sink.begin(), sink.end(), address);
    sink.begin_attempt();
    HttpAnswer answer = transport_.send_once(
        request, transport_.limits(), [&](const HttpAnswer& head, auto bytes) { return sink.take(head, bytes); });
    if (sink.is_complete()) return;
    using Problem = RangeSink::Problem;
    if (sink.problem() == Problem::kNoRanges) throw no_ranges(url);
    if (sink.problem() == Problem::kChanged || answer.status == 412 || answer.status == 416) throw file_changed(url);
    if (!is_mended && answer.status >= 300 && answer.status < 500 && mend(answer)) {
      is_mended = true;
      continue;
    }
    if (is_redirect(answer.status)) {
      if (++redirects > kMostRedirects) throw failed(answer, url).because("it redirects too often");
      follow(object.key, request, answer);
      continue;
    }
    // An address of a hub is valid for minutes. The hub itself returns a new one.
    if (address && answer.status >= 400 && answer.status < 500 && redirects < kMostRedirects) {
      ++redirects;
      forget_redirect(object.key);
      continue;
    }
    const bool is_short = answer.status == 206 && answer.failure.empty();
    const bool is_wrong = sink.problem() != Problem::kNone;
    const bool may_pass = (answer.may_pass || is_wrong || is_short) && sink.may_continue();
    if (!may_pass || attempt == transport_.limits().attempts) {
      throw is_wrong ? sink.other_range(url) : failed(answer, url);
    }
    if (is_short) answer.failure = "the answer is too short";
    if (is_wrong) answer.failure = kWrongRange;
    transport_.wait(attempt++, answer, authority_of(request.origin));
  }
}

std::optional<Place::Probed> Place::probe(const std::string& key, std::optional<Error>& refused) {
  const std::string url = url_of(key);
  Probed probed;
  probed.object.key = key;
  probed.object.bytes = -1;
  probed.head.resize(static_cast<std::size_t>(kHeadBytes));
  bool is_mended = false;
  int redirects = 0;
  for (int attempt = 1;;) {
    RangeSink sink(probed.object, true, 0, probed.head);
    const HttpRequest request = ranged(probed.object, 0, kHeadBytes, redirect_of(key));
    HttpAnswer answer = transport_.send_once(
        request, transport_.limits(), [&](const HttpAnswer& head, auto bytes) { return sink.take(head, bytes); });
    if (!is_mended && answer.status >= 300 && answer.status < 500 && mend(answer)) {
      is_mended = true;
      continue;
    }
    if (is_redirect(answer.status)) {
      const bool is_folder = percent_decode(answer.header("location")).ends_with(percent_decode(request.target) + "/");
      if (is_folder) return std::nullopt;
      if (++redirects > kMostRedirects) throw failed(answer, url).because("it redirects too often");
      follow(key, request, answer);
      continue;
    }
    const bool is_empty = (answer.status == 416 && answer.header("content-range") == "bytes */0") ||
                          (answer.status == 200 && answer.is_ok() && answer.header("content-length") == "0");
    if (is_empty || sink.is_complete()) {
      probed.object.bytes = is_empty ? 0 : sink.total();
      probed.object.etag = answer.header("etag");
      if (probed.object.etag.empty()) probed.object.modified = answer.header("last-modified");
      probed.object.head_bytes = std::min(kHeadBytes, probed.object.bytes);
      probed.head.resize(static_cast<std::size_t>(probed.object.head_bytes));
      return probed;
    }
    // Servers of WebDAV answer 405 about folders.
    if (answer.status == 401 || answer.status == 403 || answer.status == 405) {
      if (!refused) refused = failed(answer, url);
      return std::nullopt;
    }
    if (answer.status == 404 || answer.status == 410) return std::nullopt;
    if (sink.problem() == RangeSink::Problem::kNoRanges) {
      if (answer.header("content-type").starts_with("text/html")) return std::nullopt;  // A page about a folder.
      throw no_ranges(url);
    }
    const bool is_short = answer.status == 206, is_wrong = sink.problem() != RangeSink::Problem::kNone;
    if ((!answer.may_pass && !is_short) || attempt == transport_.limits().attempts) {
      throw is_wrong ? sink.other_range(url) : failed(answer, url);
    }
    if (is_short && answer.failure.empty()) answer.failure = "the answer is too short";
    if (is_wrong) answer.failure = kWrongRange;
    transport_.wait(attempt++, answer, authority_of(request.origin));
  }
}

}  // namespace shard::stores
