/// \file
/// Output: the files that a job writes, all or nothing. Knows only names inside the output, not its location or how it
/// is committed; io/local_output.h is the one on a local disk.
///
/// One rank, the root, begins the output. Every rank, the root too, writes through a part of its own, which finds the
/// output by the root's token. Each file is created by one rank, its owner; others may open it after that. Where ranks
/// write to several places, each place has a root and an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Suffix of a file's companion. A stale companion of another file is never left next to a new file.
inline constexpr std::string_view kCompanionSuffix = ".manifest.json";

struct OutputFile {
  std::string path;  ///< Inside the output, parts separated by '/'.
  std::int64_t bytes = 0;
  /// The companion of an output that is a single file: it lies beside it, under its name with `path` at the end.
  bool is_beside = false;
};

/// A small file next to the output, not part of the commit: what a later run needs to resume this one.
struct OutputNote {
  std::string name;
  std::vector<std::byte> content;
};

/// One rank's access to the files. Destroying it closes the files and removes nothing.
/// Threads: `create` and `open` by one; the writers' write_at by several. Ownership: the part owns its writers.
class OutputPart {
 public:
  virtual ~OutputPart() = default;
  /// Creates one of the files declared when the output was begun, with exactly `file.bytes`. \throws Error kResource
  /// In a resumed output the file may already exist; its bytes are kept.
  virtual FileWriter& create(const OutputFile& file) = 0;
  /// A file that another rank, its owner, has created. \throws Error kResource
  virtual FileWriter& open(const std::string& path) = 0;
  /// Makes durable what was written through this part, and closes its files. \throws Error kResource
  virtual void finish() = 0;
  /// Begins a note. Null where outputs cannot be taken up. \throws Error kResource, kExists
  virtual std::unique_ptr<FileWriter> create_note(const std::string& /*name*/) { return nullptr; }
  /// The notes of the runs that this output was taken up from, sorted by name. \throws Error kResource
  virtual std::vector<OutputNote> notes() { return {}; }
};

/// An unfinished output of a killed run. Locked against other runs until destroyed.
class LeftOutput {
 public:
  virtual ~LeftOutput() = default;
  virtual const std::vector<OutputNote>& notes() const = 0;  ///< At least one; sorted by name.
};

/// The root's handle on a begun output. Threads: one.
class Output {
 public:
  virtual ~Output() = default;  ///< Aborts unless committed; a commit is final from then on.
  /// What OutputStore::part of any rank finds this output by.
  virtual std::vector<std::byte> token() const = 0;
  /// Performs the invisible part of the commit and removes the notes. \pre every part has finished.
  /// \throws Error kResource, kExists
  virtual void prepare() = 0;
  /// Makes all files visible atomically; calls prepare first if needed. \throws Error kResource, kExists
  virtual void commit() = 0;
  /// Undoes the commit and restores the previous destination. \pre committed, and not destroyed
  /// since. \throws Error kResource  what was committed stays
  virtual void take_back() = 0;
  /// Removes the written files. The previous destination is untouched.
  virtual void abort() noexcept = 0;
  /// Releases the written files without removing them, so that a later run can resume. As `abort` where none can.
  virtual void leave() noexcept { abort(); }
};

/// Creates and finds the output at one destination. Every rank has its own object for the same destination.
class OutputStore {
 public:
  virtual ~OutputStore() = default;
  /// Free space in bytes; INT64_MAX if unknown.
  virtual std::int64_t free_bytes() const = 0;
  /// Equal for ranks whose outputs go to one and the same place.
  virtual std::string place() const = 0;
  /// Called by the root. `is_folder`: the destination is a folder of these files, else it is the one file itself.
  /// \throws Error kResource (too little space, ...), kExists; kInvalidArgument  a path is absolute or holds "..".
  /// `left`: of find_left; the output is taken up where it was left, instead of a new one. \pre it has the same files
  virtual std::unique_ptr<Output> begin(std::span<const OutputFile> files, bool is_folder,
                                        std::unique_ptr<LeftOutput> left = nullptr) = 0;
  /// The unfinished output of a killed run, with its notes; null if there is none or the store does not support it.
  virtual std::unique_ptr<LeftOutput> find_left() { return nullptr; }
  /// Called by the root of a place that gets none of the files: what stands at the destination goes with the commit.
  /// Null where nothing stands there. \throws Error kResource, kExists
  virtual std::unique_ptr<Output> begin_removal() = 0;
  /// Called by every rank once the root has begun. `token` is Output::token() of the root.
  virtual std::unique_ptr<OutputPart> part(std::span<const std::byte> token) = 0;
};

}  // namespace shard
