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
#include "libshard/exec/execute.h"
#include "libshard/exec/framing.h"
#include "libshard/exec/source_checks.h"
#include "libshard/io/output.h"
#include "libshard/job/copy_job.h"
#include "libshard/job/exchange.h"
#include "libshard/job/file_holders.h"
#include "libshard/job/journal.h"
#include "libshard/job/manifest_run.h"
#include "libshard/job/topology.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Decisions that are identical on all ranks, made before copying.
struct PreparedCopy {
  Catalog target;
  std::optional<Catalog> filled{};  ///< TargetMaker::fill's, if the plan does not fill the target itself.
  std::unique_ptr<Writer> writer;
  std::vector<int> owners;         ///< By file of the target.
  std::optional<File> manifest{};  ///< Not one of the target's files: no writer knows of it.
  int manifest_owner = 0;
  FilePlaces file_places{};              ///< For the manifest.
  std::optional<FileHolders> holders{};  ///< By file of the source, with Topology::peer_store.
  std::optional<JournalHead> journal{};  ///< This rank's, where one is kept.
  Plan plan;                             ///< All ranks' together, or what this rank alone copies.
  std::int64_t memory_bytes = 0;         ///< What a rank may take; the same on all.

  /// What the plan fills.
  const Catalog& planned() const { return filled ? *filled : target; }
};

/// Tells CopyJob::on_step, if there is one.
void notify(const CopyJob& job, std::string_view step);

/// Ownership: all that it is made of must outlive it.
class CopyRun {
 public:
  /// \param left  what this rank's place is to be taken up from, or null.
  CopyRun(OutputStore& store, Group& group, const CopyJob& job, PreparedCopy& prepared, const OutputPlaces& places,
          std::unique_ptr<LeftOutput> left, Progress& progress);
  /// \throws Error  of any step, the same on all ranks; the output was aborted then.
  void run();

 private:
  void begin();
  OutputFile manifest_output() const;
  void open_journal();
  void begin_own_files(const std::stop_token& stop);
  void open_others();
  FileWriter& hashed(std::uint32_t file, FileWriter& to);
  void copy();
  void prepare_exchange();
  bool exchanges() const { return job_.topology.exchanges() && group_.size() > 1; }
  void exchange_source_checks();
  void exchange_checksums();
  void sum_progress();
  void finish();
  void sync_others();
  void make_manifest();
  void commit();
  void commit_everywhere();
  void take_back_everywhere();
  void clean_up() noexcept;

  bool is_root() const { return places_.is_root(group_.rank()); }
  bool is_own(std::size_t file) const { return prepared_.owners[file] == group_.rank(); }
  TileRange own_tiles() const;
  /// Work on each of this rank's files, by all its threads.
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
  std::unique_ptr<Output> output_;  ///< A root's, where files go to its place.
  bool is_committed_ = false;
  std::unique_ptr<OutputPart> part_;
  std::unique_ptr<Journal> journal_;
  std::vector<FileWriter*> files_;  ///< Null if this rank does not write to the file.
  std::optional<ManifestRun> manifest_;
  FileWriter* manifest_writer_ = nullptr;  ///< The owner's.
  std::unique_ptr<Framing> framing_;
  std::unique_ptr<StorageChecksums> checksums_;
  std::unique_ptr<DeviceLink> link_;  ///< Between the ranks' devices, where pieces travel by it.
  std::unique_ptr<PieceTransport> transport_;
  std::unique_ptr<Exchange> exchange_;  ///< Where ranks read for one another.
};

}  // namespace shard
