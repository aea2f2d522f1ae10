/// \file ObjectStore: requests that write objects, their parts and their conditions, as object stores know them. Names
///   are URLs. An ObjectStore keeps no state between requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/paths.h"
#include "libshard/io/source_store.h"
#include "libshard/io/url_path.h"

namespace shard {

/// An object, or an unfinished upload of one.
struct BucketObject {
  std::string url;
  std::int64_t bytes = 0;
  std::string etag{};
  std::string run{};     ///< The name of the run that wrote it; only in answers to kLook.
  std::string upload{};  ///< The name of the upload; only in answers to kUploads.
};

struct StoredPart {
  int number = 0;  ///< From 1.
  std::int64_t bytes = 0;
  std::string etag{};
  std::string crc32c{};  ///< In base64; empty: the store does not compute it.
};

enum class ObjectAct : std::uint8_t {
  kList,      ///< All objects below the folder `url`.
  kLook,      ///< The object at `url`, without its bytes.
  kRead,      ///< The bytes of a small object, or [begin, end) of one with `etag`. At most 8 MiB.
  kPut,       ///< Stores `body` as an object of `run`.
  kBegin,     ///< Begins an upload of an object of `run`.
  kPart,      ///< Stores `body` as part `number` of `upload`.
  kCopy,      ///< Stores [begin, end) of the object `from` as part `number` of `upload`. Its ETag must be `etag`, or if
              ///< that is empty, the one with which the store's files were listed.
  kParts,     ///< The parts of `upload`.
  kUploads,   ///< The unfinished uploads whose object is below the folder `url`, or is `url` itself.
  kComplete,  ///< Makes `parts` of `upload` the object.
  kAbort,     ///< Removes `upload` and its parts.
  kRemove,    ///< Removes the object.
};

/// Requirement for the object that kPut and kComplete replace.
enum class ObjectCondition : std::uint8_t {
  kAny,
  kAbsent,  ///< Nothing.
  kSame,    ///< The object with `etag`.
};

struct ObjectRequest {
  ObjectAct act = ObjectAct::kLook;
  std::string url{};
  std::string upload{}, run{}, etag{};
  ObjectCondition condition = ObjectCondition::kAny;
  int number = 0;
  std::uint32_t crc32c = 0;  ///< CRC-32C of `body`, for kPart and kPut.
  std::span<const std::byte> body{};
  std::vector<StoredPart> parts{};
  std::string from{};
  std::int64_t begin = 0, end = 0;
  /// Number of the attempt of kPut or kComplete, which are sent once. The store waits before later ones.
  int attempt = 1;
  bool is_reading = false;  ///< Nothing is to be written, so a failure is one of reading (kNotFound).
  bool is_cleanup = false;  ///< Also sent when all else is interrupted, but not for long.
};

enum class ObjectOutcome : std::uint8_t {
  kDone,
  kAbsent,   ///< The object or upload does not exist.
  kRefused,  ///< The condition does not hold; kCopy: `from` is absent or has changed; kRead: it has changed.
  kUnknown,  ///< kPut and kComplete: no answer, or an ambiguous one. kLook shows the object.
  kCannot,   ///< kCopy: the store does not support it, or not for this object.
};

struct ObjectAnswer {
  ObjectOutcome outcome = ObjectOutcome::kDone;
  std::vector<BucketObject> objects{};  ///< kList, kUploads: all; kLook: one.
  std::vector<StoredPart> parts{};      ///< kParts: all, by number; kPart, kCopy: one.
  std::string text{};                   ///< kRead: the bytes; kBegin: the name of the upload; kUnknown: why.
  std::string etag{};                   ///< kRead, kPut.
  bool has_checksums = false;           ///< kBegin: kComplete must have the CRC-32C of each part.
};

/// Threads: safe.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  /// \throws Error kResource  refused access, unreachable after all attempts, or a confirmed checksum that differs;
  ///   kInvalidArgument  not a URL of an object; kUnsupported  the place cannot be written; kInterrupted
  virtual ObjectAnswer ask(const ObjectRequest& request) const = 0;
};

/// Whether kCopy may copy an object at `from` to one at `to`. Buckets of two schemes have different servers and
/// credentials, and Google's server does not know the call.
inline bool is_copied_by_store(std::string_view from, std::string_view to) {
  return url_scheme(from) == "s3" && url_scheme(to) == "s3";
}

/// A store of URLs, which reads files, and writes objects if the place supports that.
class UrlFiles : public SourceStore, public ObjectStore {
 public:
  /// URLs have no links, so the check of the name suffices.
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const final {
    static_cast<void>(parts_below(folder, relative));
    return open(join_path(folder, relative));
  }
};

}  // namespace shard
