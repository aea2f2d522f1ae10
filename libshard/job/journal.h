/// \file
/// The journal of a job: the tiles that were written, so that a later run goes on where this one was killed. Inside
/// libshard/job only.
///
/// A journal is a note of the output (io/output.h), one for each rank and run: a head that says what the job is, then
/// batches of records as tiles become complete. Each carries its length and CRC-32, so one that was cut short ends the
/// journal. The journal is not fsynced: losses from a power cut are detected when tiles are read back.
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

/// What the grid of tiles depends on beside the two catalogs.
struct PlanGrid {
  int threads = 1;
  std::int64_t max_memory_bytes = 0;
};

/// What two runs must have in common; differences are reported in this order.
struct JobIdentity {
  std::string version;  ///< Of the program.
  std::vector<SourceFile> source;
  std::string target;  ///< For people: format, files, bytes.
  std::string plan;    ///< A hash over every copy.
};
/// \throws Error kInvalidArgument  they differ, saying in what
void expect_same_job(const JobIdentity& interrupted, const JobIdentity& now);

/// The files that the reader opened. Cost: identify's for each.
std::vector<SourceFile> identify_files(const Reader& reader);

struct JournalHead {
  PlanGrid grid;
  JobIdentity job;
};
/// Nothing where a note is not a journal.
std::optional<JournalHead> read_journal_head(std::span<const std::byte> note);

/// By rank.
using JournalHeads = std::map<int, JournalHead>;
/// The heads of journals among notes, as bytes for other ranks; of a rank's runs the first, which all followed.
Bytes heads_of(std::span<const OutputNote> notes);
/// Those of all ranks; of several for one rank the first. \throws Error kPeer
JournalHeads read_heads(std::span<const Bytes> all);

/// \returns the name of a note: of one run the notes sort together, and after those of earlier ones.
std::string journal_name(std::size_t run, int rank);
std::optional<int> rank_of_journal(std::string_view name);

/// Jobs that write less than this restart as fast as they resume.
inline constexpr std::int64_t kLeastJournaledBytes = 8 << 20;

/// A journal that is being written, and what earlier runs wrote.
class Journal final : public TileLog {
 public:
  /// \param make_note  called once, when enough was written that it is worth a file; may return null.
  Journal(JournalHead head, std::function<std::unique_ptr<FileWriter>()> make_note)
      : head_(std::move(head)), make_note_(std::move(make_note)) {}
  ~Journal() override;

  /// Takes over the records of an earlier run for tiles in `tiles` and sources that fit; of a tile the last counts.
  /// Ignores a note that is not a journal.
  void read(std::span<const std::byte> note, TileRange tiles, std::span<const Storage> sources);

  const TileRecord* written_before(std::int64_t tile) const override;
  void add(TileRecord record) override;
  /// Records the last tiles of an output that is kept for a later run. If this fails, only the later run has to redo
  /// them.
  void end() noexcept;

 private:
  void flush();

  const JournalHead head_;
  const std::function<std::unique_ptr<FileWriter>()> make_note_;
  std::map<std::int64_t, TileRecord> before_;
  std::mutex mutex_;  ///< Guards all below.
  std::vector<TileRecord> records_;
  std::int64_t recorded_bytes_ = 0;  ///< Written to tiles in `records_`.
  std::unique_ptr<FileWriter> note_;
  std::int64_t end_ = 0;  ///< Of the note.
  bool is_begun_ = false;
};

}  // namespace shard
