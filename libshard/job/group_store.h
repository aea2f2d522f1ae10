/// \file GroupStore: a source whose files are distributed over ranks, as if they were all in one place.
///
/// Every rank reads its own files from its own store. It requests all other files from the ranks that hold them, during
/// the collective step to which this traffic belongs (ranks/collective_step.h). In each round, the ranks exchange the
/// requests of their work, and the holders send the data. Any rank may request anything at any time, so readers need
/// not know about the ranks and need not run in step. If they do run in step, for example when a checkpoint is opened,
/// all ranks request the same data at once.
///
/// Views: the first access to a path asks all ranks for their view of it. Ranks with equal views send them only once.
/// Reads: up to 1 MiB per request. Small reads use blocks of 16 KiB, of which the last 128 are cached during a step.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// One rank's view of a path.
struct PathView {
  struct Entry {
    std::string name;
    FileKind kind = FileKind::kAbsent;
    std::int64_t bytes = 0;
  };
  FileKind kind = FileKind::kAbsent;
  std::int64_t bytes = 0;
  std::vector<Entry> entries;  ///< The entries of a folder, by name.
  bool is_unknown = false;     ///< The rank could not access the path.
};

/// This rank's view of a path. \throws Error kNotFound  the path exists and cannot be accessed.
PathView view_of(const SourceStore& store, const std::string& path);

/// The union of all ranks' views of a path.
struct PeerPath {
  FileKind kind = FileKind::kAbsent;  ///< On the lowest rank.
  std::int64_t bytes = 0;             ///< On the lowest rank.
  std::uint32_t number = 0;           ///< An index that identifies the path.
  std::uint32_t holders = 0;          ///< Index for PeerPaths::holders.
  bool is_listed = false;             ///< Whether `names` has the entries of all ranks.
  std::vector<std::string> names;     ///< The entries of a folder, sorted.
  int other = -1;                     ///< A rank with a different kind or size, or -1.
  FileKind other_kind = FileKind::kAbsent;
  std::int64_t other_bytes = 0;
};

/// The known paths, as they were requested, with '/' between parts. Threads: one at a time. Memory: each different view
/// once, and each set of holders once.
class PeerPaths {
 public:
  PeerPaths() { holders_.emplace_back(); }
  /// Adds `path` and the entries of a folder. `views[i]` is the view of the ranks `ranks[i]` (in rising order). The
  /// views are sorted by their first ranks.
  void add(const std::string& path, std::span<const PathView* const> views, std::span<const std::vector<int>> ranks);
  /// Null if the path is not known yet. A name that is missing in a listed folder is known to be absent.
  const PeerPath* find(const std::string& path) const;
  /// Finds a file by the end of its path, as messages name it. Null if no path or several paths match.
  const PeerPath* find_file(const std::string& end_of_path) const;
  /// The ranks that have it, in rising order.
  const std::vector<int>& holders(const PeerPath& seen) const { return holders_[seen.holders]; }

 private:
  void add_one(const std::string& path, std::span<const std::pair<std::size_t, PathView::Entry>> seen,
               std::span<const std::vector<int>> ranks);
  std::uint32_t holders_of(const std::vector<std::size_t>& views, std::span<const std::vector<int>> ranks);

  std::map<std::string, PeerPath> paths_;
  std::vector<std::vector<int>> holders_;
  std::map<std::vector<int>, std::uint32_t> known_holders_;
};

/// The error for a file of which two ranks have different versions.
Error different_files(int rank, int other, const std::string& path);

/// \throws Error kCorruption  ranks have different views of `path`; the message names two of them.
void check_agreement(const PeerPath& seen, const std::vector<int>& holders, const std::string& path);

/// Threads: safe. Ownership: the rank's own store must outlive this object, which must outlive the files that it opens.
/// Cost: 3 exchanges between all ranks for a view, 2 for reads. A request waits for the next round.
class GroupStore final : public SourceStore, public AwaitedTraffic {
 public:
  /// The limit on cached bytes of files during a step: a third each for cached blocks, data to send, and received data.
  /// Between steps, nothing is cached.
  static constexpr std::int64_t kMemoryBytes = 6 << 20;

  GroupStore(const SourceStore& own, int rank) : own_(own), rank_(rank) {}

  /// \throws Error kInterrupted  from all functions that read: the step has failed, or no step with this traffic is
  ///   running;
  ///     kCorruption  from `list` and `open`: ranks have different files of one name.
  FileStatus status(const std::string& path) const override;
  std::vector<std::string> list(const std::string& folder) const override;
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// The ranks that hold an opened file, by RandomReader::name, in rising order.
  std::vector<int> holders(const std::string& name) const;

  void end() override;
  std::int64_t word() override;
  bool waits() const override;
  bool move(Group& group, std::span<const std::int64_t> words) override;
  void attribute(Error& failure) const override;

 private:
  class RemoteFile;
  /// The name of a file to open: `folder` and a path below it, or only a path.
  struct FileName {
    std::string folder, relative;
    std::string path() const;
  };
  /// A request for which a thread of the work waits.
  struct Ask {
    FileName file;
    std::int64_t offset_bytes = 0;
    std::span<std::byte> out{};  ///< Empty: a request for a view of file.path().
    bool is_done = false;
  };
  /// A request in the form in which other ranks receive it.
  struct Wish {
    FileName file;
    std::int64_t offset_bytes = 0, bytes = 0;
    int asker = 0;
  };
  struct Reply;

  PeerPath seen(const std::string& path) const;
  std::unique_ptr<RandomReader> open(const FileName& file) const;
  void read(const FileName& file, std::int64_t file_bytes, std::int64_t offset_bytes, std::span<std::byte> out) const;
  void read_blocks(const FileName& file, std::int64_t file_bytes, std::int64_t offset_bytes,
                   std::span<std::byte> out) const;
  void wait_for(Ask& ask) const;

  std::vector<Wish> exchange_wishes(Group& group, std::span<const std::int64_t> words);
  void look(Group& group, const std::vector<std::string>& paths);
  Bytes own_views(const std::vector<std::string>& paths);
  std::vector<Reply> choose_replies(std::span<const Wish> wishes, int ranks);
  void reply(Group& group, std::span<const Wish> wishes);
  void read_into(const Wish& wish, std::span<std::byte> out);
  void finish_read(const Wish& wish, std::span<const std::byte> bytes);

  const SourceStore& own_;
  const int rank_;
  mutable std::list<Ask*> asks_;  ///< mutex_ guards it and all members up to block_order_.
  PeerPaths paths_;
  using BlockName = std::pair<std::string, std::int64_t>;
  mutable std::map<BlockName, Bytes> blocks_;
  mutable std::deque<BlockName> block_order_;

  Bytes batch_;  ///< This rank's requests in the last exchange. Only the group's thread uses this and all members
                 ///< below.
  std::uint64_t meeting_ = 0;
  std::map<std::string, std::unique_ptr<RandomReader>> served_;  ///< Own files that other ranks read.
};

}  // namespace shard
