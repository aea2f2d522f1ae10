/// \file WatchedStore: a consistent view of a source during one run, which asks its store as little as possible.
///
/// Each folder is listed once, and the status of each path is read once. Later calls return the first answer, so that
/// all parts of a run see the same files, and a store with a long round trip is asked once. Names that appear or vanish
/// during the run are not noticed.
///
/// A file that is still open is not opened again: its readers share it. Those opened last stay open for later readers.
///
/// On a disk with long round trips (RandomReader::requests_at_once), the store also asks ahead. After a second request
/// for the status or the content of a file in a folder that was listed, it requests the same of the next files with
/// that suffix, several at one time. When a file is opened, it reads the first and the last bytes, which most formats
/// need first.
///
/// Contents are watched: from its first opening on, a file must keep its identity, size and modification time. A change
/// in the middle of a file is not noticed if the modification time was reset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/core/hash_table.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Ownership: the inner store must outlive this. Threads: safe. Memory: at most kMostKept files stay open, with 80 KiB
/// each on a disk with long round trips.
class WatchedStore final : public SourceStore {
 public:
  static constexpr std::size_t kMostKept = 128;

  /// `requests_at_once`: see RandomReader. Without it, the first opened file determines it.
  explicit WatchedStore(const SourceStore& inner, int requests_at_once = 1)
      : inner_(inner), requests_(requests_at_once) {}
  /// The status at the first call for that path, or when it was opened. A name that its folder's listing lacks is
  /// absent. Failures are not remembered.
  FileStatus status(const std::string& path) const override;
  /// The names at the first call for that folder. Failures are not remembered. Cost: a copy of the names.
  std::vector<std::string> list(const std::string& folder) const override;
  /// \throws Error kCorruption  also if the file changed since it was opened before
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// Call it after everything was read. It reads all statuses again. \throws Error kCorruption  a file changed since it
  /// was opened
  /// Cost: a status call for each file that was opened.
  void expect_unchanged() const;

 private:
  struct Facts {
    FileIdentity identity;
    std::int64_t bytes = 0, modified_ns = 0;
  };
  /// A file that was opened, by its path. `below`: by a name with folders in it, whose links must not leave the source.
  struct Opened {
    std::mutex mutex;  ///< Held while it is opened, so that it is opened once.
    bool is_known = false;
    Facts facts;  ///< From the first opening.
    std::weak_ptr<const RandomReader> file, below;
  };
  using OpenedPtr = std::shared_ptr<Opened>;
  using Opener = std::function<std::unique_ptr<RandomReader>()>;
  enum class Question : char { kStatus = 's', kContent = 'c' };
  /// The files of a folder that have one suffix, about which one question was asked.
  struct Alike {
    std::string first;  ///< The path that was asked first.
    bool is_sorted = false;
    std::vector<std::string> paths;  ///< All of them, once sorted by their numbers.
    std::size_t next = 0;            ///< The first that was not asked ahead.
  };

  bool is_missing(const std::string& path) const;
  OpenedPtr entry_of(const std::string& path) const;
  std::unique_ptr<RandomReader> open_once(const std::string& path, std::weak_ptr<const RandomReader> Opened::*place,
                                          const Opener& opener) const;
  std::unique_ptr<RandomReader> open_new(const Opener& opener) const;
  void release_kept() const;
  std::vector<std::string> take_next(Question question, const std::string& path) const;
  void ask_ahead(Question question, const std::string& path) const;
  static void compare(const std::string& path, const Facts& opened, const Facts& now);

  const SourceStore& inner_;
  mutable std::atomic<int> requests_;  ///< The number of requests to send at one time.
  mutable std::mutex releasing_, mutex_;
  mutable HashMap<std::string, FileStatus> statuses_;             ///< By path.
  mutable HashMap<std::string, std::vector<std::string>> lists_;  ///< By folder, with a slash at its end.
  mutable HashMap<std::string, OpenedPtr> opened_;                ///< By path.
  mutable HashMap<std::string, Alike> alike_;                     ///< By question, folder and suffix.
  mutable std::deque<std::shared_ptr<const RandomReader>> kept_;  ///< The files opened last.
};

}  // namespace shard
