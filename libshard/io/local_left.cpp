#include "libshard/io/local_left.h"

#include <algorithm>
#include <functional>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard {

namespace {

/// Calls `each` with the unlocked siblings, locked, until it returns that this is enough. Skips siblings that cannot be
/// listed, opened or locked.
void for_each_left(LocalFolder& parent, const Destination& to,
                   const std::function<bool(const std::string& name, std::unique_ptr<LocalFolder>& folder)>& each) {
  std::vector<std::string> names;
  try {
    names = parent.list();
  } catch (const Error&) {
  }
  for (const std::string& name : names) {
    if (!to.is_sibling(name)) continue;
    try {
      auto left = parent.open_folder(name);
      if (left->try_lock() && each(name, left)) return;
    } catch (const Error&) {
    }
  }
}

bool is_note(std::string_view entry, const std::string& destination) {
  return entry.starts_with(note_file(destination, ""));
}

}  // namespace

std::vector<OutputNote> read_notes(LocalFolder& sibling, const std::string& destination, std::int64_t most) {
  constexpr std::int64_t kWholeNotes = 8;
  std::vector<OutputNote> notes;
  std::int64_t left = std::min(kLargestNote, kWholeNotes * most);
  for (const std::string& name : sibling.list()) {
    if (!is_note(name, destination)) continue;
    const FileStatus status = sibling.status_of(name);
    if (status.kind != FileKind::kFile) continue;
    OutputNote note{name.substr(note_file(destination, "").size()), {}};
    const std::int64_t bytes = std::min(status.bytes, most);
    if (bytes <= left) {
      note.content.resize(static_cast<std::size_t>(bytes));
      sibling.open_existing(name)->read_back(0, note.content);
      left -= bytes;
    }
    notes.push_back(std::move(note));
  }
  return notes;
}

bool remove_notes(LocalFolder& sibling, const std::string& destination) {
  bool has_removed = false;
  for (const std::string& name : sibling.list()) {
    if (!is_note(name, destination)) continue;
    sibling.remove_all(name);
    has_removed = true;
  }
  return has_removed;
}

std::unique_ptr<LocalLeft> find_left_sibling(LocalFolder& parent, const Destination& to) {
  std::unique_ptr<LocalLeft> found;
  for_each_left(parent, to, [&](const std::string& name, std::unique_ptr<LocalFolder>& folder) {
    if (!folder->is_private()) return false;
    std::vector<OutputNote> notes = read_notes(*folder, to.name, kNoteBegin);
    if (notes.empty()) return false;
    found = std::make_unique<LocalLeft>(name, std::move(folder), std::move(notes));
    return true;
  });
  return found;
}

void remove_left_siblings(LocalFolder& parent, const Destination& to) {
  for_each_left(parent, to, [&](const std::string& name, std::unique_ptr<LocalFolder>& folder) {
    parent.remove_folder(name, *folder);
    return false;
  });
}

}  // namespace shard
