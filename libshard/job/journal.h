/// \file The journal of a job: records the tiles that were written, so that a later run can continue where this one was
///   killed. Inside libshard/job only.
///
/// A journal is a note of the output (io/output.h), one per rank and run. A head identifies the job. Batches of records
/// follow as tiles become complete. Each batch has its length and CRC-32, so a truncated one ends the journal. The
/// journal is not fsynced, because losses from a power cut are detected when tiles are read back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/exec/tile_log.h"
#include "libshard/io/output.h"
#include "libshard/manifest/manifest.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/group.h"

namespace shard {

/// The parameters, in addition to the two catalogs, that determine the grid of tiles.
struct PlanGrid {
  int threads = 1;
  std::int64_t max_memory_bytes = 0;
};

/// The properties that two runs must have in common. Differences are reported in this order.
struct JobIdentity {
  std::string version;  ///< The program's version.
  std::vector<SourceFile> source;
  std::string target;  ///< Used in messages: format, files, bytes.
  std::string plan;    ///< A hash that equal jobs share.
};
/// \throws Error kInvalidArgument  they differ; the message names the property
void expect_same_job(const JobIdentity& interrupted, const JobIdentity& now);

/// The files that the reader opened. Cost: that of identify, per file.
std::vector<SourceFile> identify_files(const Reader& reader);

struct JournalHead {
  PlanGrid grid;
  JobIdentity job;
};
/// Parses a journal's head. Nothing if the note is not a journal.
std::optional<JournalHead> read_journal_head(std::span<const std::byte> note);

/// Keys are ranks.
using JournalHeads = std::map<int, JournalHead>;
/// Serializes the heads of journals among notes for other ranks. If a rank has several runs, the first is used, because
/// later runs resumed it.
Bytes heads_of(std::span<const OutputNote> notes);
/// Parses the heads from all ranks. If a rank has several, the first is used. \throws Error kPeer
JournalHeads read_heads(std::span<const Bytes> all);

/// \returns the name of a note. The notes of one run sort together, after those of earlier runs.
std::string journal_name(std::size_t run, int rank);
std::optional<int> rank_of_journal(std::string_view name);

/// Jobs that write less than this restart as fast as they resume.
inline constexpr std::int64_t kLeastJournaledBytes = 8 << 20;

/// Writes a journal, and contains the records of earlier runs.
class Journal final : public TileLog {
 public:
  /// \param make_note  called once, when enough data was written to justify a file; may return null.
  Journal(JournalHead head, std::function<std::unique_ptr<FileWriter>()> make_note)
      : head_(std::move(head)), make_note_(std::move(make_note)) {}

  /// Adds the records of an earlier run for tiles in `tiles` and for sources that match. If a tile has several records,
  /// the last one is used. Ignores a note that is not a journal.
  void read(std::span<const std::byte> note, TileRange tiles, std::span<const Storage> sources);

  const TileRecord* written_before(std::int64_t tile) const override;
  void add(TileRecord record) override;
  /// Records the last tiles of an output that is kept for a later run. If this fails, that run copies them again.
  void end() noexcept;

 private:
  void flush();

  const JournalHead head_;
  const std::function<std::unique_ptr<FileWriter>()> make_note_;
  std::map<std::int64_t, TileRecord> before_;
  std::mutex mutex_;  ///< Guards everything below.
  std::vector<TileRecord> records_;
  std::int64_t recorded_bytes_ = 0;  ///< The bytes written for the tiles in `records_`.
  std::unique_ptr<FileWriter> note_;
  std::int64_t end_ = 0;  ///< The end of the note.
  bool is_begun_ = false;
};

}  // namespace shard
