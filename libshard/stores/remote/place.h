/// \file Place: a bucket, a web server, or a revision of a model on a hub, whose files are read by ranged requests.
///   Inside libshard/stores/remote only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/core/file_identity.h"
#include "libshard/io/source_store.h"
#include "libshard/stores/object_store.h"
#include "libshard/stores/plugin.h"
#include "libshard/stores/remote/http.h"

namespace shard::stores {

/// Returns an environment variable; empty if it is missing.
using Environment = std::function<std::string(const std::string& name)>;

/// A file as its listing, or the first answer about it, describes it. Later answers must agree.
struct Object {
  std::string key;  ///< The path below the place.
  std::int64_t bytes = 0;
  std::string etag{};      ///< Sent with each request; empty: the server gives none.
  std::string modified{};  ///< Last-Modified, if there is no ETag.
  /// The size of the first piece to read, in which headers are expected.
  std::int64_t head_bytes = 0;
};

/// The part of a file that is read first unless its size is known to be small.
inline constexpr std::int64_t kHeadBytes = 64 << 10;

/// The files and folders of one listing.
struct Listing {
  std::vector<Object> objects{};       ///< Sorted by key, no key twice.
  std::vector<std::string> folders{};  ///< Keys without their last slash, of a listing that is not deep.
  std::optional<Error> refused{};      ///< The server does not allow lists to this client, but may allow reads.
};

/// Threads: safe.
class Place {
 public:
  /// `root` is the place's URL. The transport must outlive this.
  Place(Transport& transport, std::string root) : transport_(transport), root_(std::move(root)) {}
  virtual ~Place() = default;
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  const std::string& root() const { return root_; }
  std::string url_of(std::string_view key) const;

  /// Whether list works. Otherwise folders are unknown, and files are found by probing them.
  virtual bool can_list() const = 0;
  /// Whether a listing costs the same for the whole place as for a folder.
  virtual bool lists_whole() const { return false; }
  /// All files below `prefix`, which is empty or ends in '/'; unless `is_deep`, without those in folders below it.
  /// \throws Error kNotFound, kCorruption, kInterrupted
  virtual Listing list(const std::string& prefix, bool is_deep) = 0;

  /// Fills `out` from `offset`, resuming where an answer breaks off.
  /// \throws Error kCorruption  the file changed; kUnsupported  no ranges; kNotFound, kInterrupted
  void read(const Object& object, std::int64_t offset, std::span<std::byte> out);
  /// Does the same with bytes that are passed on in order as they arrive, and an exception of `take`.
  void stream(const Object& object, std::int64_t offset, std::int64_t bytes, const ByteTaker& take);

  struct Probed {
    Object object;
    std::vector<std::byte> head;  ///< The first Object::head_bytes.
  };
  /// Reads the head of a file that was not listed. Nothing if there is none, or if the server refuses access. `refused`
  /// then receives the first such error. \throws Error kUnsupported  no ranges; kNotFound  unreachable; kInterrupted
  std::optional<Probed> probe(const std::string& key, std::optional<Error>& refused);

  /// A request about an object, or about its uploads.
  struct Change {
    std::string method, key;
    Query query{};
    Headers headers{};
    std::span<const std::byte> data{};  ///< The body. The caller keeps it.
    bool is_once = false;               ///< Sent once, so that the caller decides about a missing answer.
    bool is_cleanup = false;            ///< See HttpRequest. Three attempts of 2 s at most.
    bool is_slow = false;               ///< The server may work for minutes before it answers.
  };
  /// Whether objects can be written.
  virtual bool can_write() const { return false; }
  /// The server's answer with any status, after repeating what may pass. \throws Error kInterrupted
  HttpAnswer send(const Change& change);
  /// The error for an answer about `url`. \param code  kNotFound for reading, kResource for writing
  Error failed(const HttpAnswer& answer, const std::string& url, ErrorCode code = ErrorCode::kNotFound) const;
  /// The code of an error answer, such as "NoSuchBucket"; empty if there is none.
  virtual std::string error_code(const HttpAnswer& answer) const = 0;
  /// Waits before the next attempt after such an answer.
  void wait(int attempt, const HttpAnswer& answer) { transport_.wait(attempt, answer, root_); }
  int attempts() const { return transport_.limits().attempts; }

 protected:
  /// The request for the bytes of a file, without credentials.
  virtual HttpRequest request_of(const std::string& key) = 0;
  /// Adds credentials to a request to the place itself. \throws Error kNotFound  there are none
  virtual void authorize(HttpRequest& request) = 0;
  /// After an error: whether the request would succeed with other settings, which this function changed.
  virtual bool mend(const HttpAnswer& answer) = 0;
  virtual bool follows_redirects() const = 0;
  /// Adds a hint to the error for an answer.
  virtual void explain(const HttpAnswer& answer, const std::string& code, Error& error) const = 0;

  /// The answer to a request without a range, for listings. \throws Error  any other than a success
  HttpAnswer ask(const std::function<HttpRequest()>& make, const std::string& url);
  /// The same, with any status. \throws Error kNotFound  a refused redirect; kInterrupted
  HttpAnswer ask_any(const std::function<HttpRequest()>& make, const std::string& url);
  Transport& transport() { return transport_; }

 private:
  struct Address {
    std::string origin, target;
  };
  class RangeSink;
  void fetch(const Object& object, RangeSink& sink);
  void direct(HttpRequest& request, const std::optional<Address>& address);
  Address redirected(const std::string& url, const HttpRequest& request, const HttpAnswer& answer) const;
  HttpRequest ranged(const Object& object, std::int64_t begin, std::int64_t end, const std::optional<Address>& address);
  std::optional<Address> redirect_of(const std::string& key);
  void follow(const std::string& key, const HttpRequest& request, const HttpAnswer& answer);
  bool forget_redirect(const std::string& key);

  Transport& transport_;
  const std::string root_;
  std::mutex mutex_;
  std::map<std::string, Address> redirects_;  ///< The addresses of files, by key.
};

/// A bucket of an S3 service, or of Google Cloud Storage. \throws Error kInvalidArgument
std::unique_ptr<Place> open_bucket(Transport& transport, const StoreRequest& request, const Environment& environment,
                                   const std::string& scheme, const std::string& bucket);
/// A web server. \throws Error kUnsupported  http:// of a different machine
std::unique_ptr<Place> open_web(Transport& transport, const std::string& scheme, const std::string& authority);
/// A model on a hub. `revision` is empty for the main one. \throws Error kNotFound  also if HF_HUB_OFFLINE is set
std::unique_ptr<Place> open_hub(Transport& transport, const StoreRequest& request, const Environment& environment,
                                const std::string& repository, const std::string& revision);

/// Sends a request to a bucket, whose URL is that of `key` in `place`. \throws Error  see ObjectStore::ask
ObjectAnswer change_objects(Place& place, const std::string& key, const ObjectRequest& request);

}  // namespace shard::stores
