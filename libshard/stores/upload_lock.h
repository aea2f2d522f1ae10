/// \file UploadLock: the object beside an output in an object store that keeps other runs away, and holds the record of
///   its uploads. Inside libshard/stores only.
#pragma once

#include <string>

#include "libshard/core/error.h"
#include "libshard/stores/object_store.h"
#include "libshard/stores/upload_note.h"

namespace shard {

/// The number of attempts for a request whose outcome is unclear.
inline constexpr int kUploadAttempts = 5;

/// The error for a request that had no clear answer. \param why  the last answer
Error no_clear_answer(const std::string& url, const std::string& why);

/// The note is stored with conditions only, so only one of several runs holds the lock.
/// All members \throws Error kResource
/// Threads: one. Ownership: borrows the store.
class UploadLock {
 public:
  UploadLock(const ObjectStore& store, std::string destination);

  const UploadNote& note() const { return note_; }
  UploadNote& note() { return note_; }  ///< Changes are stored by `record`.
  bool is_held() const { return is_held_; }

  /// Takes the lock under a new run's name. The note has its files already. With `force`, a different run loses it.
  /// \returns whether one did \throws Error kExists  a different run holds it
  bool take(bool force);
  /// Takes the lock of an interrupted run, under that run's name. \throws Error kExists
  void take_up(UploadNote note, const std::string& etag);
  /// Stores the note. \throws Error kExists  a different run has taken the lock, which is then no longer held
  void record();
  /// \throws Error kExists  as record
  void check_held();
  /// Stores that ignore conditions would replace silently. \throws Error kUnsupported
  void check_conditions() const;
  void remove();   ///< Deletes the lock.
  void release();  ///< Leaves the object for a later run.

  /// The error if a different run holds the lock.
  Error busy() const;

 private:
  bool put_note(ObjectCondition condition);
  ObjectRequest request(ObjectCondition condition, const std::string& text) const;
  void remove_own_note() const noexcept;

  const ObjectStore& store_;
  const std::string url_;
  UploadNote note_;
  std::string etag_;        ///< The ETag of the stored note.
  std::string found_etag_;  ///< The ETag of a different note that was found instead.
  bool is_held_ = false;
};

}  // namespace shard
