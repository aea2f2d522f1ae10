#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "libshard/core/parse_number.h"
#include "libshard/stores/object_checks.h"
#include "libshard/stores/remote/listing.h"
#include "libshard/stores/remote/place.h"
#include "libshard/stores/remote/upload_answers.h"
#include "libshard/stores/remote/url.h"

namespace shard::stores {

namespace {

constexpr const char* kBinary = "application/octet-stream";

class Objects {
 public:
  Objects(Place& place, const std::string& key, const ObjectRequest& request)
      : place_(place), key_(key), request_(request), url_(place.url_of(key)) {}

  ObjectAnswer ask() {
    switch (request_.act) {
      case ObjectAct::kList:
        return list();
      case ObjectAct::kLook:
        return look();
      case ObjectAct::kRead:
        return read();
      case ObjectAct::kPut:
        return put();
      case ObjectAct::kBegin:
        return begin();
      case ObjectAct::kPart:
        return part();
      case ObjectAct::kCopy:
        return copy();
      case ObjectAct::kParts:
        return parts();
      case ObjectAct::kUploads:
        return uploads();
      case ObjectAct::kComplete:
        return complete();
      case ObjectAct::kAbort:
        return remove({{"uploadId", request_.upload}});
      case ObjectAct::kRemove:
        return remove({});
    }
    return {};
  }

 private:
  Place::Change change(const char* method) const {
    Place::Change made{.method = method, .key = key_};
    made.is_cleanup = request_.is_cleanup;
    return made;
  }
  Error failed(const HttpAnswer& answer) const {
    return place_.failed(answer, url_, request_.is_reading ? ErrorCode::kNotFound : ErrorCode::kResource);
  }

  void add_condition(Headers& headers) const {
    if (request_.condition == ObjectCondition::kAbsent) headers["if-none-match"] = "*";
    if (request_.condition == ObjectCondition::kSame) headers["if-match"] = request_.etag;
  }

  /// The result of `read`, whose errors become those of writing, unless the request is part of reading.
  template <class Read>
  auto parsed(const Read& read) const {
    try {
      return read();
    } catch (Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      if (request_.is_reading) throw error.in_file(url_);
      Error own(ErrorCode::kResource, error.what());
      own.in_file(url_).because(error.why()).hint(error.hint());
      for (const Suggestion& each : error.suggestions()) own.suggest(each.remedy, each.argument);
      throw own;
    }
  }

  ObjectAnswer list() {
    ObjectAnswer answer;
    const Listing listing = parsed([&] {
      Listing found = place_.list(key_.empty() ? key_ : key_ + "/", true);
      if (found.refused) throw *found.refused;
      return found;
    });
    for (const Object& object : listing.objects) {
      answer.objects.push_back({.url = place_.url_of(object.key), .bytes = object.bytes, .etag = object.etag});
    }
    return answer;
  }

  ObjectAnswer look() {
    const HttpAnswer answer = place_.send(change("HEAD"));
    if (answer.status == 404) return {.outcome = ObjectOutcome::kAbsent};
    if (!answer.is_ok()) throw failed(answer);
    BucketObject object{.url = url_, .etag = answer.header("etag")};
    object.bytes = parse_natural(answer.header("content-length")).value_or(-1);
    object.run = answer.header("x-amz-meta-shardctl-run");
    if (object.run.empty()) object.run = answer.header("x-goog-meta-shardctl-run");
    return {.objects = {std::move(object)}};
  }

  ObjectAnswer read() {
    Place::Change sent = change("GET");
    const bool is_range = request_.end > 0;
    if (is_range) {
      sent.headers = {{"range", fmt::format("bytes={}-{}", request_.begin, request_.end - 1)},
                      {"if-match", request_.etag}};
    }
    const HttpAnswer answer = place_.send(sent);
    if (answer.status == 404) return {.outcome = ObjectOutcome::kAbsent};
    if (answer.status == 412 || answer.status == 416) return {.outcome = ObjectOutcome::kRefused};
    if (!answer.is_ok() || (is_range && answer.status != 206)) throw failed(answer);
    return {.text = answer.body, .etag = answer.header("etag")};
  }

  ObjectAnswer put() {
    Place::Change sent = change("PUT");
    sent.headers = {{"content-type", kBinary}, {"x-amz-meta-shardctl-run", request_.run}};
    sent.headers["x-amz-checksum-crc32c"] = crc32c_text(request_.crc32c);
    add_condition(sent.headers);
    sent.data = request_.body;
    const HttpAnswer answer = settle(sent);
    ObjectAnswer result = judged(answer);
    if (result.outcome == ObjectOutcome::kDone) check_confirmed(answer);
    return result;
  }

  ObjectAnswer begin() {
    Place::Change sent = change("POST");
    sent.query = {{"uploads", ""}};
    sent.headers = {
        {"content-type", kBinary}, {"x-amz-checksum-algorithm", "CRC32C"}, {"x-amz-meta-shardctl-run", request_.run}};
    const HttpAnswer answer = place_.send(sent);
    if (!answer.is_ok()) throw failed(answer);
    return {.text = parsed([&] { return upload_name(answer.body); }),
            .has_checksums = answer.header("x-amz-checksum-algorithm") == "CRC32C"};
  }

  ObjectAnswer part() {
    Place::Change sent = change("PUT");
    sent.query = {{"partNumber", std::to_string(request_.number)}, {"uploadId", request_.upload}};
    sent.headers = {{"content-type", kBinary}, {"x-amz-checksum-crc32c", crc32c_text(request_.crc32c)}};
    sent.data = request_.body;
    const HttpAnswer answer = place_.send(sent);
    if (answer.status == 404) return {.outcome = ObjectOutcome::kAbsent};
    if (!answer.is_ok()) throw failed(answer);
    check_confirmed(answer);
    StoredPart stored{.number = request_.number, .bytes = std::ssize(request_.body), .etag = answer.header("etag")};
    stored.crc32c = answer.header("x-amz-checksum-crc32c");
    return {.parts = {std::move(stored)}};
  }

  ObjectAnswer copy() {
    const std::string from = request_.from.substr(std::min(place_.root().find("://") + 3, request_.from.size()));
    Place::Change sent = change("PUT");
    sent.query = {{"partNumber", std::to_string(request_.number)}, {"uploadId", request_.upload}};
    sent.headers = {{"x-amz-copy-source", "/" + percent_encode(from, true)},
                    {"x-amz-copy-source-if-match", request_.etag},
                    {"x-amz-copy-source-range", fmt::format("bytes={}-{}", request_.begin, request_.end - 1)}};
    sent.is_slow = true;
    for (int attempt = 1;; ++attempt) {
      HttpAnswer answer = place_.send(sent);
      const bool is_upload_absent = answer.status == 404 && place_.error_code(answer) == "NoSuchUpload";
      if (is_upload_absent) return {.outcome = ObjectOutcome::kAbsent};
      if (answer.status == 404 || answer.status == 412) return {.outcome = ObjectOutcome::kRefused};
      const bool is_unknown =
          answer.status == 400 || answer.status == 403 || answer.status == 405 || answer.status == 501;
      if (is_unknown) return {.outcome = ObjectOutcome::kCannot};
      if (!answer.is_ok()) throw failed(answer);
      if (place_.error_code(answer).empty()) {
        // It stored the empty body of the request.
        if (answer.body.empty()) return {.outcome = ObjectOutcome::kCannot};
        StoredPart stored = parsed([&] { return copied_part(answer.body); });
        stored.number = request_.number;
        stored.bytes = request_.end - request_.begin;
        return {.parts = {std::move(stored)}};
      }
      if (attempt >= place_.attempts()) throw failed(answer);  // An error inside an answer with status 200.
      place_.wait(attempt, answer);
    }
  }

  ObjectAnswer parts() {
    ObjectAnswer result;
    Place::Change sent = change("GET");
    sent.query = {{"uploadId", request_.upload}};
    for (;;) {
      const HttpAnswer answer = place_.send(sent);
      if (answer.status == 404) return {.outcome = ObjectOutcome::kAbsent};
      if (!answer.is_ok()) throw failed(answer);
      const NextPage next = parsed([&] { return add_parts_page(answer.body, result.parts); });
      if (next.is_last()) return result;
      sent.query["part-number-marker"] = next.marker;
    }
  }

  ObjectAnswer uploads() {
    ObjectAnswer result;
    Place::Change sent = change("GET");
    sent.key.clear();
    sent.query = {{"encoding-type", "url"}, {"prefix", key_}, {"uploads", ""}};
    std::set<std::string> seen;
    for (std::int64_t pages = 1;; ++pages) {
      const HttpAnswer answer = place_.send(sent);
      if (!answer.is_ok()) throw failed(answer);
      const NextPage next = parsed([&] { return add_uploads_page(answer.body, key_, result.objects); });
      if (next.is_last()) break;
      const bool is_new = seen.insert(next.marker + "\n" + next.upload).second;
      if (!is_new || may_be_endless(pages, std::ssize(result.objects))) {
        throw failed(answer).because("the list of uploads does not end");
      }
      sent.query["key-marker"] = next.marker;
      sent.query["upload-id-marker"] = next.upload;
    }
    std::erase_if(result.objects, [&](const BucketObject& each) {
      return !key_.empty() && each.url != key_ && !each.url.starts_with(key_ + "/");
    });
    for (BucketObject& each : result.objects) each.url = place_.url_of(each.url);
    return result;
  }

  ObjectAnswer complete() {
    const std::string text = complete_text(request_.parts);
    Place::Change sent = change("POST");
    sent.query = {{"uploadId", request_.upload}};
    sent.headers = {{"content-type", "application/xml"}};
    add_condition(sent.headers);
    sent.data = std::as_bytes(std::span(text));
    sent.is_slow = true;
    const HttpAnswer answer = settle(sent);
    const bool is_document = answer.body.find('<') != std::string::npos;
    if (answer.is_ok() && (!is_document || !place_.error_code(answer).empty())) {
      return {.outcome = ObjectOutcome::kUnknown, .text = is_document ? place_.error_code(answer) : "no XML"};
    }
    return judged(answer);
  }

  /// Sends a request once, after a wait if it is not the first attempt.
  HttpAnswer settle(Place::Change& sent) {
    if (request_.attempt > 1) place_.wait(request_.attempt - 1, {.failure = "no clear answer"});
    sent.is_once = true;
    return place_.send(sent);
  }

  /// The meaning of an answer to a request that was sent once.
  ObjectAnswer judged(const HttpAnswer& answer) const {
    if (answer.is_ok()) return {.etag = answer.header("etag")};
    if (answer.status == 412 || answer.status == 409) return {.outcome = ObjectOutcome::kRefused};
    if (answer.may_pass || answer.status == 404 || answer.status == 0) {
      const std::string code = place_.error_code(answer);
      if (code == "NoSuchBucket") throw failed(answer);
      const std::string status = fmt::format("HTTP {} {}", answer.status, code);
      return {.outcome = ObjectOutcome::kUnknown, .text = answer.failure.empty() ? status : answer.failure};
    }
    throw failed(answer);
  }

  ObjectAnswer remove(const Query& query) {
    Place::Change sent = change("DELETE");
    sent.query = query;
    const HttpAnswer answer = place_.send(sent);
    if (answer.status == 404) return {.outcome = ObjectOutcome::kAbsent};
    if (!answer.is_ok()) throw failed(answer);
    return {};
  }

  /// \throws Error kResource  the server received different bytes
  void check_confirmed(const HttpAnswer& answer) const {
    constexpr std::string_view kGoogle = "crc32c=";
    const std::string wanted = crc32c_text(request_.crc32c);
    std::string confirmed = answer.header("x-amz-checksum-crc32c");
    const std::string& google = answer.header("x-goog-hash");
    if (const std::size_t at = google.find(kGoogle); confirmed.empty() && at != std::string::npos) {
      confirmed = google.substr(at + kGoogle.size(), wanted.size());
    }
    if (confirmed.empty() || confirmed == wanted) return;
    throw Error(ErrorCode::kResource, "the server received different bytes from those that were sent")
        .in_file(url_)
        .expected("CRC-32C " + wanted)
        .found(confirmed);
  }

  Place& place_;
  const std::string& key_;
  const ObjectRequest& request_;
  const std::string url_;
};

}  // namespace

ObjectAnswer change_objects(Place& place, const std::string& key, const ObjectRequest& request) {
  if (!place.can_write()) {
    throw Error(ErrorCode::kUnsupported, "cannot write to this place").in_file(request.url).expected("s3:// or gs://");
  }
  return Objects(place, key, request).ask();
}

}  // namespace shard::stores
