/// \file
/// What the ranks of a group see of paths that each of them has for itself: their union, and who holds what. Pure but
/// for view_of.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// What one rank sees at a path.
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

/// What all ranks see at a path.
struct SeenPath {
  FileKind kind = FileKind::kAbsent;  ///< The lowest rank's.
  std::int64_t bytes = 0;             ///< The lowest rank's.
  std::uint32_t number = 0;           ///< Of its own.
  std::uint32_t holders = 0;          ///< See SeenPaths::holders.
  bool is_listed = false;             ///< `names` are those of all ranks.
  std::vector<std::string> names;     ///< Of a folder, sorted.
  int other = -1;                     ///< A rank that sees another kind or size; -1: none does.
  FileKind other_kind = FileKind::kAbsent;
  std::int64_t other_bytes = 0;
};

/// Paths as they were asked for, '/' between parts. Threads: one at a time.
/// Memory: what the ranks see that differs, once each; sets of holders once each.
class SeenPaths {
 public:
  SeenPaths() { holders_.emplace_back(); }
  /// Adds `path` and the entries of a folder. `views[i]` is what the ranks `ranks[i]` (rising) see of it; the views are
  /// in the order of their first ranks.
  void add(const std::string& path, std::span<const PathView* const> views, std::span<const std::vector<int>> ranks);
  /// Null where nobody knows yet. What a listed folder does not hold is known to be absent.
  const SeenPath* find(const std::string& path) const;
  /// The same for a file that a message names by the end of its path; null where none or several end so.
  const SeenPath* find_file(const std::string& end_of_path) const;
  /// The ranks that see it, rising.
  const std::vector<int>& holders(const SeenPath& seen) const { return holders_[seen.holders]; }

 private:
  void add_one(const std::string& path, std::span<const std::pair<std::size_t, PathView::Entry>> seen,
               std::span<const std::vector<int>> ranks);
  std::uint32_t holders_of(const std::vector<std::size_t>& views, std::span<const std::vector<int>> ranks);

  std::map<std::string, SeenPath> paths_;
  std::vector<std::vector<int>> holders_;
  std::map<std::vector<int>, std::uint32_t> known_holders_;
};

/// \throws Error kCorruption  ranks see different things at `path`, naming two of them.
void check_agreement(const SeenPath& seen, const std::vector<int>& holders, const std::string& path);

}  // namespace shard
