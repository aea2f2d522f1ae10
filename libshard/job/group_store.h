/// \file
/// GroupStore: a source of which each rank sees its own files only, as if all of them lay in one place.
///
/// Every rank reads its own files from its own store. What lies elsewhere is asked of the ranks that hold it, while a
/// collective step goes on whose traffic this is (ranks/step_traffic.h): at each meeting the ranks tell one another
/// what their work asks for, and the holders send it. Any rank may ask for anything at any time, so readers need not
/// know, and need not run in step; where they do, as when a checkpoint is opened, all ask for the same at once.
///
/// Looks: a path that nobody has looked at is looked at by all ranks; ranks that see the same say it once. Reads: up to
/// 1 MiB an ask; small ones in blocks of 16 KiB, of which the last 128 are kept until the step ends.
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
#include "libshard/ranks/step_traffic.h"
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
  std::vector<Entry> entries;  ///< Of a folder, by name.
  bool is_unknown = false;     ///< The rank could not look.
};

/// \throws Error kNotFound  the path is there and cannot be looked at.
PathView view_of(const SourceStore& store, const std::string& path);
void write_view(WireWriter& to, const PathView& view);

/// \throws Error kPeer
PathView read_view(WireReader& from);

/// The union of all ranks' views of a path.
struct PeerPath {
  FileKind kind = FileKind::kAbsent;  ///< The lowest rank's.
  std::int64_t bytes = 0;             ///< The lowest rank's.
  std::uint32_t number = 0;           ///< Of its own.
  std::uint32_t holders = 0;          ///< See PeerPaths::holders.
  bool is_listed = false;             ///< `names` are those of all ranks.
  std::vector<std::string> names;     ///< Of a folder, sorted.
  int other = -1;                     ///< A rank that sees another kind or size; -1: none does.
  FileKind other_kind = FileKind::kAbsent;
  std::int64_t other_bytes = 0;
};

/// Paths as they were asked for, '/' between parts. Threads: one at a time.
/// Memory: what the ranks see that differs, once each; sets of holders once each.
class PeerPaths {
 public:
  PeerPaths() { holders_.emplace_back(); }
  /// Adds `path` and the entries of a folder. `views[i]` is what the ranks `ranks[i]` (rising) see of it; the views are
  /// in the order of their first ranks.
  void add(const std::string& path, std::span<const PathView* const> views, std::span<const std::vector<int>> ranks);
  /// Null where nobody knows yet. What a listed folder does not hold is known to be absent.
  const PeerPath* find(const std::string& path) const;
  /// The same for a file that a message names by the end of its path; null where none or several end so.
  const PeerPath* find_file(const std::string& end_of_path) const;
  /// The ranks that see it, rising.
  const std::vector<int>& holders(const PeerPath& seen) const { return holders_[seen.holders]; }

 private:
  void add_one(const std::string& path, std::span<const std::pair<std::size_t, PathView::Entry>> seen,
               std::span<const std::vector<int>> ranks);
  std::uint32_t holders_of(const std::vector<std::size_t>& views, std::span<const std::vector<int>> ranks);

  std::map<std::string, PeerPath> paths_;
  std::vector<std::vector<int>> holders_;
  std::map<std::vector<int>, std::uint32_t> known_holders_;
};

/// \throws Error kCorruption  ranks see different things at `path`, naming two of them.
void check_agreement(const PeerPath& seen, const std::vector<int>& holders, const std::string& path);

/// Threads: safe. Ownership: the rank's own store must outlive it, and it what it opens.
/// Cost: of a look 3 exchanges between all ranks, of reads 2; an ask waits for the next meeting.
class GroupStore final : public SourceStore, public AwaitedTraffic {
 public:
  /// What it holds at most of files' bytes while a step goes on, a third each for blocks that are kept, what is sent,
  /// and what is received; nothing between steps.
  static constexpr std::int64_t kMemoryBytes = 6 << 20;

  GroupStore(const SourceStore& own, int rank) : own_(own), rank_(rank) {}

  /// \throws Error kInterrupted  from all that reads: the step has failed, or no step with this traffic goes on;
  ///   kCorruption  from `list` and `open`: ranks hold different things of one name.
  FileStatus status(const std::string& path) const override;
  std::vector<std::string> list(const std::string& folder) const override;
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// The ranks that hold an opened file, by RandomReader::name; rising.
  std::vector<int> holders(const std::string& name) const;

  void end() override;
  std::int64_t word() override;
  bool waits() const override;
  bool move(Group& group, std::span<const std::int64_t> words) override;
  void attribute(Error& failure) const override;

 private:
  class RemoteFile;
  /// A file as it is opened: `folder` and a path below it, or a path alone.
  struct FileName {
    std::string folder, relative;
    std::string path() const;
  };
  /// What a thread of the work waits for.
  struct Ask {
    FileName file;
    std::int64_t offset_bytes = 0;
    std::span<std::byte> out{};  ///< Empty: a look at file.path().
    bool is_done = false;
  };
  /// The same as another rank hears it.
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
  mutable std::list<Ask*> asks_;  ///< mutex_ guards it, and all up to block_order_.
  PeerPaths paths_;
  using BlockName = std::pair<std::string, std::int64_t>;
  mutable std::map<BlockName, Bytes> blocks_;
  mutable std::deque<BlockName> block_order_;

  Bytes batch_;  ///< This rank's asks as the last word counted them. The group's thread only, as all below.
  std::uint64_t meeting_ = 0;
  std::map<std::string, std::unique_ptr<RandomReader>> served_;  ///< Own files that others read.
};

}  // namespace shard
