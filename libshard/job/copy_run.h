/// \file
/// One run of a prepared copy job, by all ranks of a group: begin, copy, finish, commit. Inside libshard/job only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "libshard/checkpoint/writer.h"
#include "libshard/exec/checksums.h"
#include "libshard/exec/execute.h"
#include "libshard/exec/framing.h"
#include "libshard/io/output.h"
#include "libshard/job/copy_job.h"
#include "libshard/job/exchange.h"
#include "libshard/job/file_holders.h"
#include "libshard/job/file_shares.h"
#include "libshard/job/journal.h"
#include "libshard/job/manifest_run.h"
#include "libshard/job/topology.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Decisions that are made before copying. They are identical on all ranks, except for the plan if
/// Topology::plans_differ(), and for the journal.
struct PreparedCopy {
  Catalog target;
  std::optional<Catalog> filled{};  ///< The result of TargetMaker::fill, if the plan does not fill the target itself.
  std::unique_ptr<Writer> writer;
  std::vector<int> owners;         ///< The owner's rank, by file of the target.
  FileShares shares{};             ///< With Topology::whole_files; empty if ranks share no file.
  std::optional<File> manifest{};  ///< Not one of the target's files, so writers do not know it.
  int manifest_owner = 0;
  FilePlaces file_places{};              ///< Used by the manifest.
  std::optional<FileHolders> holders{};  ///< By file of the source, with Topology::peer_store.
  std::optional<JournalHead> journal{};  ///< The head of this rank's journal, if it keeps one.
  Plan plan;                             ///< The plan of all ranks, or only this rank's copies.
  std::int64_t memory_bytes = 0;         ///< The memory limit of a rank, equal on all ranks.

  /// The catalog that the plan fills.
  const Catalog& planned() const { return filled ? *filled : target; }
  /// By storage of `catalog`, which is the target or planned(): whether `rank` fills it and writes its frame.
  std::vector<std::uint8_t> storages_of(int rank, const Catalog& catalog) const;
};

/// Calls CopyJob::on_step, if there is one.
void notify(const CopyJob& job, std::string_view step);

/// Ownership: all constructor arguments must outlive it.
class CopyRun {
 public:
  /// \param left  the output to resume at this rank's place, or null.
  CopyRun(OutputStore& store, Group& group, const CopyJob& job, PreparedCopy& prepared, const OutputPlaces& places,
          std::unique_ptr<LeftOutput> left, Progress& progress);
  /// \throws Error  of any step. The output was then aborted, or kept as CopyJob::resume defines.
  void run();

 private:
  void begin();
  OutputFile manifest_output() const;
  void open_journal();
  void begin_own_files(const std::stop_token& stop);
  FileWriter& create_own(std::uint32_t file);
  FileWriter& create_share(std::uint32_t file);
  void open_others();
  FileWriter& hashed(std::uint32_t file, FileWriter& to);
  void copy();
  void prepare_exchange();
  bool exchanges() const { return job_.topology.exchanges() && group_.size() > 1; }
  void exchange_source_checks();
  void exchange_checksums();
  void sum_progress();
  void finish();
  void exchange_shared_bytes();
  void write_received(const std::vector<Bytes>& messages);
  void sync_others();
  void make_manifest();
  void pass_receipts();
  void commit();
  void commit_everywhere();
  void take_back_everywhere();
  void clean_up() noexcept;

  bool is_root() const { return places_.is_root(group_.rank()); }
  bool is_own(std::size_t file) const { return prepared_.owners[file] == group_.rank(); }
  bool is_shared(std::uint32_t file) const { return prepared_.shares.is_shared(file); }
  TileRange own_tiles() const;
  /// Runs `work` for each of this rank's files, and for shared ones, on all its threads.
  void for_each_own_file(const std::stop_token& stop,
                         const std::function<void(std::uint32_t file, FileWriter& to)>& work);
  void step(std::string_view name, const std::function<void(const std::stop_token& stop)>& work);

  OutputStore& store_;
  Group& group_;
  const CopyJob& job_;
  PreparedCopy& prepared_;
  const OutputPlaces& places_;
  SourceChecks source_checks_;
  Progress& progress_;
  std::unique_ptr<LeftOutput> left_;
  std::unique_ptr<Output> output_;  ///< Only on a root whose place receives files.
  bool is_committed_ = false;
  std::unique_ptr<OutputPart> part_;
  std::unique_ptr<Journal> journal_;
  std::vector<FileWriter*> files_;                   ///< Null if this rank does not write to the file.
  std::vector<std::unique_ptr<SharedFile>> shared_;  ///< By file; null if it is not shared. Empty if none is.
  std::optional<ManifestRun> manifest_;
  FileWriter* manifest_writer_ = nullptr;  ///< Only on the owner.
  std::unique_ptr<Framing> framing_;
  std::unique_ptr<StorageChecksums> checksums_;
  std::unique_ptr<DeviceLink> link_;  ///< The link between the ranks' devices, if pieces are sent over it.
  std::unique_ptr<PieceTransport> transport_;
  std::unique_ptr<Exchange> exchange_;  ///< Not null if ranks read for one another.
};

}  // namespace shard
