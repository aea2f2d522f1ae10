// An ObjectStore in memory, with conditions and uploads, which can fail at any request.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/stores/object_checks.h"
#include "libshard/stores/object_store.h"

namespace shard::testing {

class MemoryBucket final : public ObjectStore {
 public:
  enum class Failure {
    kNone,
    kKill,  ///< The process ends before the request: this one and all later ones fail.
    kLost,  ///< The request is done, but its answer is lost. A request that may be repeated is.
    kLast,  ///< The request fails for good, and is not done.
  };
  struct Object {
    std::vector<std::byte> bytes;
    std::string etag, run;
  };
  struct Part {
    std::vector<std::byte> bytes;
    StoredPart facts;
  };
  struct Upload {
    std::string url, run;
    std::map<int, Part> parts;
  };

  ObjectAnswer ask(const ObjectRequest& request) const override {
    const std::scoped_lock lock(mutex);
    const bool is_failing = failure != Failure::kNone && static_cast<int>(log.size()) == fails_at;
    log.push_back(name_of(request));
    if (is_dead || (is_failing && failure == Failure::kKill)) {
      is_dead = true;
      throw Error(ErrorCode::kResource, "killed");
    }
    if (is_failing && failure == Failure::kLast) throw Error(ErrorCode::kResource, "refused for good");
    ObjectAnswer answer = perform(request);
    if (!is_failing || failure != Failure::kLost) return answer;
    const bool is_once = request.act == ObjectAct::kPut || request.act == ObjectAct::kComplete;
    if (is_once) return {.outcome = ObjectOutcome::kUnknown, .text = "lost"};
    return perform(request);
  }

  std::string text(const std::string& url) const {
    const std::vector<std::byte>& bytes = objects.at(url).bytes;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  mutable std::mutex mutex;
  mutable std::map<std::string, Object> objects;
  mutable std::map<std::string, Upload> uploads;
  mutable std::vector<std::string> log;
  mutable bool is_dead = false;
  mutable int count = 0, parts_stored = 0;
  bool ignores_conditions = false, knows_checksums = true, copies = true, ignores_ranges = false;
  std::string listed_etag;  ///< The ETag of every source of a copy when it was listed.
  Failure failure = Failure::kNone;
  int fails_at = -1;

 private:
  static std::string name_of(const ObjectRequest& request) {
    static constexpr const char* kNames[] = {"list", "look",  "read",    "put",      "begin", "part",
                                             "copy", "parts", "uploads", "complete", "abort", "remove"};
    return std::string(kNames[static_cast<std::size_t>(request.act)]) + " " + request.url;
  }

  bool holds(const ObjectRequest& request) const {
    if (ignores_conditions || request.condition == ObjectCondition::kAny) return true;
    const auto there = objects.find(request.url);
    if (request.condition == ObjectCondition::kAbsent) return there == objects.end();
    return there != objects.end() && there->second.etag == request.etag;
  }

  StoredPart store_part(Upload& upload, int number, std::vector<std::byte> bytes) const {
    Part& part = upload.parts[number];
    part.facts = {number, std::ssize(bytes), '"' + md5_hex(bytes) + '"'};
    if (knows_checksums) part.facts.crc32c = crc32c_text(crc32c(bytes));
    part.bytes = std::move(bytes);
    return part.facts;
  }

  ObjectAnswer perform(const ObjectRequest& request) const {
    const auto object = objects.find(request.url);
    const auto upload = uploads.find(request.upload);
    switch (request.act) {
      case ObjectAct::kList: {
        ObjectAnswer answer;
        for (const auto& [url, each] : objects) {
          if (url.starts_with(request.url + "/")) answer.objects.push_back({url, std::ssize(each.bytes), each.etag});
        }
        return answer;
      }
      case ObjectAct::kLook:
        if (object == objects.end()) return {.outcome = ObjectOutcome::kAbsent};
        return {.objects = {{request.url, std::ssize(object->second.bytes), object->second.etag, object->second.run}}};
      case ObjectAct::kRead:
        if (object == objects.end()) return {.outcome = ObjectOutcome::kAbsent};
        return read(request, object->second);
      case ObjectAct::kPut:
        if (!holds(request)) return {.outcome = ObjectOutcome::kRefused};
        return {.etag = store(request.url, {request.body.begin(), request.body.end()}, request.run,
                              '"' + md5_hex(request.body) + '"')};
      case ObjectAct::kBegin: {
        const std::string name = "upload-" + std::to_string(++count);
        uploads[name] = {request.url, request.run, {}};
        return {.text = name, .has_checksums = knows_checksums};
      }
      case ObjectAct::kPart:
        if (upload == uploads.end()) return {.outcome = ObjectOutcome::kAbsent};
        ++parts_stored;
        return {.parts = {store_part(upload->second, request.number, {request.body.begin(), request.body.end()})}};
      case ObjectAct::kCopy:
        return copy(request);
      case ObjectAct::kParts: {
        if (upload == uploads.end()) return {.outcome = ObjectOutcome::kAbsent};
        ObjectAnswer answer;
        for (const auto& [number, part] : upload->second.parts) answer.parts.push_back(part.facts);
        return answer;
      }
      case ObjectAct::kUploads: {
        ObjectAnswer answer;
        for (const auto& [name, each] : uploads) {
          const bool is_below = each.url == request.url || each.url.starts_with(request.url + "/");
          if (is_below) answer.objects.push_back({.url = each.url, .upload = name});
        }
        return answer;
      }
      case ObjectAct::kComplete:
        return complete(request);
      case ObjectAct::kAbort:
        return {.outcome = uploads.erase(request.upload) > 0 ? ObjectOutcome::kDone : ObjectOutcome::kAbsent};
      case ObjectAct::kRemove:
        return {.outcome = objects.erase(request.url) > 0 ? ObjectOutcome::kDone : ObjectOutcome::kAbsent};
    }
    return {};
  }

  ObjectAnswer read(const ObjectRequest& request, const Object& object) const {
    if (request.end == 0) return {.text = text(request.url), .etag = object.etag};
    if (object.etag != request.etag) return {.outcome = ObjectOutcome::kRefused};
    const auto begin = static_cast<std::size_t>(request.begin), end = static_cast<std::size_t>(request.end);
    return {.text = text(request.url).substr(begin, end - begin), .etag = object.etag};
  }

  ObjectAnswer copy(const ObjectRequest& request) const {
    const auto from = objects.find(request.from);
    if (!copies) return {.outcome = ObjectOutcome::kCannot};
    const std::string& wanted = request.etag.empty() ? listed_etag : request.etag;
    if (from == objects.end() || from->second.etag != wanted) return {.outcome = ObjectOutcome::kRefused};
    const auto upload = uploads.find(request.upload);
    if (upload == uploads.end()) return {.outcome = ObjectOutcome::kAbsent};
    const std::vector<std::byte>& bytes = from->second.bytes;
    const auto begin = bytes.begin() + (ignores_ranges ? 0 : request.begin);
    const auto end = ignores_ranges ? bytes.end() : bytes.begin() + request.end;
    StoredPart stored = store_part(upload->second, request.number, {begin, end});
    stored.bytes = request.end - request.begin;  // The answer does not tell.
    return {.parts = {std::move(stored)}};
  }

  ObjectAnswer complete(const ObjectRequest& request) const {
    const auto upload = uploads.find(request.upload);
    if (upload == uploads.end()) return {.outcome = ObjectOutcome::kUnknown, .text = "NoSuchUpload"};
    if (!holds(request)) return {.outcome = ObjectOutcome::kRefused};
    std::vector<std::byte> all;
    for (const StoredPart& part : request.parts) {
      if (knows_checksums && part.crc32c.empty()) throw Error(ErrorCode::kResource, "a part has no checksum");
      const Part& stored = upload->second.parts.at(part.number);
      all.insert(all.end(), stored.bytes.begin(), stored.bytes.end());
    }
    const std::string run = upload->second.run;
    uploads.erase(upload);
    return {.etag = store(request.url, std::move(all), run, "\"of-" + std::to_string(++count) + '"')};
  }

  std::string store(const std::string& url, std::vector<std::byte> bytes, const std::string& run,
                    std::string etag) const {
    objects[url] = {std::move(bytes), etag, run};
    return etag;
  }
};

}  // namespace shard::testing
