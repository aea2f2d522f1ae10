/// \file Output: the files that a job writes, all or nothing. It knows only names inside the output, not its location
///   or the way it is committed; io/local_output.h is the one on a local disk.
///
/// One rank, the root, creates the output. Every rank, including the root, writes through its own part, which finds the
/// output by the root's token. Each file is created by one rank, its owner. Other ranks may open it after that. In
/// stores whose files have one writer, ranks can instead create shares of a file. If ranks write to several places,
/// each place has a root and an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/run_copies.h"
#include "libshard/io/source_store.h"

namespace shard {

/// The suffix of a file's companion. A stale companion of a different file is never left next to a new file.
inline constexpr std::string_view kCompanionSuffix = ".manifest.json";

/// The size of the blocks that OutputFile::on_block receives.
inline constexpr std::int64_t kOutputBlock = 4 << 20;

struct OutputFile {
  std::string path;  ///< Relative to the output, with parts separated by '/'.
  std::int64_t bytes = 0;
  /// Whether it is the companion of an output that is a single file. It is stored next to that file, under the file's
  /// name followed by `path`.
  bool is_beside = false;
  /// Whether the root's own part creates it, in the same process. A store may then keep a small one until the commit.
  bool is_roots = false;
  /// With OutputTraits::passes_blocks: receives each block of kOutputBlock bytes (the last one may be shorter) once,
  /// when all its bytes are written. Any thread calls it. May be empty.
  std::function<void(std::int64_t block, std::span<const std::byte> bytes)> on_block{};
  /// If ranks share the file: the bytes that this rank's part writes, from and to multiples of OutputStore::share_bytes
  /// or the end. Each rank creates its share. Empty: all bytes.
  ByteRange share{};
};

/// A small file next to the output, not part of the commit. It contains the data that a later run needs to resume this
/// one.
struct OutputNote {
  std::string name;
  std::vector<std::byte> content;
};

/// One rank's access to the files. Destroying it closes the files and removes nothing.
/// Threads: `create` and `open` by one; the writers' write_at by several. Ownership: the part owns its writers.
class OutputPart {
 public:
  virtual ~OutputPart() = default;
  /// Creates one of the files declared when the output was begun, with exactly `file.bytes`. In a resumed output the
  /// file may already exist. Its bytes are kept. \throws Error kResource, kExists
  virtual FileWriter& create(const OutputFile& file) = 0;
  /// Opens a file that a different rank, its owner, has created. \throws Error kResource
  virtual FileWriter& open(const std::string& path) = 0;
  /// With OutputTraits::passes_blocks: passes the blocks that are not passed yet. Bytes that were never written are
  /// zeros. \pre the files with an on_block are completely written \throws Error kResource
  virtual void pass_blocks() {}
  /// Makes all writes through this part durable, and closes its files. \throws Error kResource
  virtual void finish() = 0;
  /// With OutputTraits::has_receipts: the facts about this part that the root needs to commit. \pre finished
  virtual std::vector<std::byte> receipt() const { return {}; }
  /// Creates a note. Null if outputs cannot be resumed. \throws Error kResource, kExists
  virtual std::unique_ptr<FileWriter> create_note(const std::string& /*name*/) { return nullptr; }
  /// The notes of the earlier runs of a resumed output, sorted by name. \throws Error kResource
  virtual std::vector<OutputNote> notes() { return {}; }
};

/// An unfinished output of a killed run. Locked against other runs until destroyed.
class LeftOutput {
 public:
  virtual ~LeftOutput() = default;
  virtual const std::vector<OutputNote>& notes() const = 0;  ///< At least one, unless it compares; sorted by name.
  /// Whether the output itself compares new bytes with written ones, so that no journal is needed.
  virtual bool compares_content() const { return false; }
};

/// The root's handle on a begun output. Threads: one.
class Output {
 public:
  virtual ~Output() = default;  ///< Aborts unless committed. After a commit, the commit becomes final.
  /// The token by which OutputStore::part on any rank finds this output.
  virtual std::vector<std::byte> token() const = 0;
  /// With OutputTraits::has_receipts: takes the receipt of a part, of this rank or of another. \throws Error kPeer
  virtual void accept(std::span<const std::byte> /*receipt*/) {}
  /// Performs the invisible part of the commit and removes the notes. \pre every part has finished.
  /// \throws Error kResource, kExists
  virtual void prepare() = 0;
  /// Makes all files visible atomically; calls prepare first if needed. \throws Error kResource, kExists
  virtual void commit() = 0;
  /// Undoes the commit and restores the previous destination. \pre committed, and not destroyed since.
  /// \throws Error kResource  the committed files stay
  virtual void take_back() = 0;
  /// Removes the written files. The previous destination is untouched.
  virtual void abort() noexcept = 0;
  /// Releases the written files without removing them, so that a later run can resume. Same as `abort` if no run can.
  virtual void leave() noexcept { abort(); }
};

/// Properties of a kind of output that a job must respect.
struct OutputTraits {
  bool whole_files = false;    ///< Each file, or share of one, has one writer. OutputPart::open is unavailable.
  bool passes_blocks = false;  ///< Written bytes cannot be read back. OutputFile::on_block receives them instead.
  bool has_receipts = false;   ///< Each part's receipt must reach the root before it prepares the commit.
  bool has_notes = true;       ///< OutputPart::create_note is available.
};

/// Creates and finds the output at one destination. Every rank has its own object for the same destination.
class OutputStore {
 public:
  virtual ~OutputStore() = default;
  virtual OutputTraits traits() const { return {}; }
  /// Free space in bytes; INT64_MAX if unknown.
  virtual std::int64_t free_bytes() const = 0;
  /// With OutputTraits::whole_files: ranks can share a file of this size at multiples of the result; 0: they cannot.
  virtual std::int64_t share_bytes(std::int64_t /*file_bytes*/) const { return 0; }
  /// The ranges of a file that the store would copy itself if these runs were offered to it (RunCopier), unless a
  /// server refuses. Sorted and disjoint. Sends no request.
  virtual std::vector<ByteRange> would_copy(std::int64_t /*file_bytes*/, std::span<const SourceRun> /*runs*/) const {
    return {};
  }
  /// Equal for ranks whose outputs are stored in the same place.
  virtual std::string place() const = 0;
  /// Called by the root. `is_folder`: the destination is a folder with these files. Otherwise it is the one file
  /// itself. `left`: from find_left; this output is resumed. \pre `left` has the same files
  /// \throws Error kResource (too little space, ...), kExists; kInvalidArgument  a path is absolute or contains "..".
  virtual std::unique_ptr<Output> begin(std::span<const OutputFile> files, bool is_folder,
                                        std::unique_ptr<LeftOutput> left = nullptr) = 0;
  /// The unfinished output of a killed run, with its notes; null if there is none or the store does not support it.
  virtual std::unique_ptr<LeftOutput> find_left() { return nullptr; }
  /// Called by the root of a place that receives none of the files. The commit removes the existing destination. Null
  /// if there is none. \throws Error kResource, kExists
  virtual std::unique_ptr<Output> begin_removal() = 0;
  /// Called by every rank after the root has created the output. `token` is Output::token() of the root.
  virtual std::unique_ptr<OutputPart> part(std::span<const std::byte> token) = 0;
};

}  // namespace shard
