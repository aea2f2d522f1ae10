/// \file Remains of killed runs next to a local output's destination: siblings, and the notes in them. Inside
///   libshard/io only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/destination.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/output.h"

namespace shard {

/// Notes are in the sibling, next to the future DST and its companion. Their names are short, and begin with a
/// different byte from DST's.
inline std::string note_file(const std::string& destination, std::string_view note) {
  return (destination.starts_with('~') ? "-note." : "~note.") + std::string(note);
}
/// The limits in bytes: on a note and on all notes that are read at once, and on the begin of a note, which identifies
/// its job.
inline constexpr std::int64_t kLargestNote = 256 << 20, kNoteBegin = 16 << 20;
/// The first `most` bytes of each note, sorted by name; all together take no more than kLargestNote, or eight times
/// `most` if that is less, and those past it are empty. \throws Error kResource
std::vector<OutputNote> read_notes(LocalFolder& sibling, const std::string& destination, std::int64_t most);
/// \returns whether there were any. \throws Error kResource
bool remove_notes(LocalFolder& sibling, const std::string& destination);

/// A sibling, locked.
class LocalLeft final : public LeftOutput {
 public:
  LocalLeft(std::string name, std::unique_ptr<LocalFolder> sibling, std::vector<OutputNote> notes)
      : name_(std::move(name)), sibling_(std::move(sibling)), notes_(std::move(notes)) {}
  const std::vector<OutputNote>& notes() const override { return notes_; }
  const std::string& name() const { return name_; }
  std::unique_ptr<LocalFolder> take_folder() { return std::move(sibling_); }

 private:
  const std::string name_;
  std::unique_ptr<LocalFolder> sibling_;
  const std::vector<OutputNote> notes_;
};
/// The first unlocked sibling of DST that has notes and that only this user may enter, with the notes' begins; or null.
std::unique_ptr<LocalLeft> find_left_sibling(LocalFolder& parent, const Destination& to);

/// Removes all unlocked leftovers. Best effort: failures are harmless and ignored.
void remove_left_siblings(LocalFolder& parent, const Destination& to);

}  // namespace shard
