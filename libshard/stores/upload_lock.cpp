#include "libshard/stores/upload_lock.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "libshard/core/digest.h"
#include "libshard/core/random_bytes.h"

namespace shard {

namespace {

std::string random_name() {
  std::array<std::uint8_t, 12> bytes{};
  draw_random(std::as_writable_bytes(std::span(bytes)));
  return to_hex(std::as_bytes(std::span(bytes)));
}

}  // namespace

Error no_clear_answer(const std::string& url, const std::string& why) {
  return Error(ErrorCode::kResource, "cannot write to the server").in_file(url).because(why);
}

UploadLock::UploadLock(const ObjectStore& store, std::string destination)
    : store_(store), url_(note_url(std::move(destination))) {}

Error UploadLock::busy() const {
  return Error(ErrorCode::kExists, "cannot write: another run is writing there, or was killed")
      .in_file(url_)
      .because("a run leaves this object only if it was killed")
      .hint("to continue a killed run, resume it")
      .suggest(Remedy::kReplaceDestination);
}

bool UploadLock::take(bool force) {
  note_.run = note_.holder = random_name();
  bool is_free = false;
  try {
    is_free = put_note(ObjectCondition::kAbsent);
  } catch (const Error&) {
    remove_own_note();  // It may have been stored.
    throw;
  }
  if (!is_free) {
    if (!force) throw busy();
    etag_ = found_etag_;
    if (!put_note(ObjectCondition::kSame)) throw busy();
  }
  is_held_ = true;
  return !is_free;
}

void UploadLock::take_up(UploadNote note, const std::string& etag) {
  note_ = std::move(note);
  note_.holder = random_name();
  etag_ = etag;
  if (!put_note(ObjectCondition::kSame)) throw busy();
  is_held_ = true;
}

void UploadLock::record() {
  if (put_note(ObjectCondition::kSame)) return;
  is_held_ = false;
  throw busy();
}

void UploadLock::check_held() {
  const ObjectAnswer there = store_.ask({.act = ObjectAct::kRead, .url = url_});
  if (there.outcome == ObjectOutcome::kDone && there.text == note_.text()) return;
  is_held_ = false;
  throw Error(ErrorCode::kExists, "cannot write: another run has taken this output over").in_file(url_);
}

void UploadLock::check_conditions() const {
  const std::string text = note_.text();
  ObjectRequest asked = request(ObjectCondition::kAbsent, text);
  for (asked.attempt = 1; asked.attempt <= kUploadAttempts; ++asked.attempt) {
    const ObjectAnswer answer = store_.ask(asked);
    if (answer.outcome == ObjectOutcome::kRefused) return;
    if (answer.outcome != ObjectOutcome::kDone) continue;
    throw Error(ErrorCode::kUnsupported, "cannot write: the server does not support conditional writes")
        .in_file(url_)
        .because("it replaced an object although If-None-Match forbade it, so another run could be overwritten");
  }
  throw no_clear_answer(url_, "a conditional write has no clear answer");
}

void UploadLock::remove() {
  is_held_ = false;
  store_.ask({.act = ObjectAct::kRemove, .url = url_, .is_cleanup = true});
}

void UploadLock::release() { is_held_ = false; }

void UploadLock::remove_own_note() const noexcept {
  try {
    const ObjectAnswer there = store_.ask({.act = ObjectAct::kRead, .url = url_, .is_cleanup = true});
    if (there.text == note_.text()) store_.ask({.act = ObjectAct::kRemove, .url = url_, .is_cleanup = true});
  } catch (const Error&) {  // A later run reports the lock.
  }
}

/// Stores the note. \returns false if a different one exists, whose ETag is then in found_etag_
bool UploadLock::put_note(ObjectCondition condition) {
  const std::string text = note_.text();
  ObjectRequest asked = request(condition, text);
  std::string why;
  for (asked.attempt = 1; asked.attempt <= kUploadAttempts; ++asked.attempt) {
    const ObjectAnswer answer = store_.ask(asked);
    const ObjectAnswer there = answer.outcome == ObjectOutcome::kDone && !answer.etag.empty()
                                   ? ObjectAnswer{.text = text, .etag = answer.etag}
                                   : store_.ask({.act = ObjectAct::kRead, .url = asked.url});
    if (there.outcome == ObjectOutcome::kDone && there.text == text) {  // Also if only the answer was lost.
      etag_ = there.etag;
      return true;
    }
    found_etag_ = there.etag;
    const bool is_there = there.outcome == ObjectOutcome::kDone;
    if (condition == ObjectCondition::kAbsent ? is_there : there.etag != etag_) return false;
    why = answer.text;
  }
  throw no_clear_answer(asked.url, why);
}

ObjectRequest UploadLock::request(ObjectCondition condition, const std::string& text) const {
  const auto body = std::as_bytes(std::span(text));
  return {.act = ObjectAct::kPut,
          .url = url_,
          .run = note_.run,
          .etag = etag_,
          .condition = condition,
          .crc32c = crc32c(body),
          .body = body};
}

}  // namespace shard
