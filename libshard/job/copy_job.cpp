#include "libshard/job/copy_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>

#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

/// How long ranks wait for rank 0 to clean up after a failure, and it for them to hear that it has.
constexpr std::chrono::milliseconds kCleanUp{5000}, kTellCleanUp{100};

void tell_step(const CopyJob& job, std::string_view step) {
  if (job.on_step) job.on_step(step);
}

/// The source tensors that a target is made of, each once.
std::vector<std::uint32_t> needed_tensors(const Catalog& target) {
  std::vector<std::uint32_t> tensors;
  tensors.reserve(target.tensors.size());
  for (const Tensor& tensor : target.tensors) {
    if (tensor.source != kNoIndex) tensors.push_back(tensor.source);
  }
  std::ranges::sort(tensors);
  const auto repeated = std::ranges::unique(tensors);
  tensors.erase(repeated.begin(), repeated.end());
  return tensors;
}

std::int64_t bytes_of(const std::vector<File>& files) {
  std::int64_t bytes = 0;
  for (const File& file : files) bytes = checked_add(bytes, file.bytes);
  return bytes;
}

/// Source's and target's, each text once.
std::vector<std::string> all_warnings(const Catalog& source, const Catalog& target) {
  std::vector<std::string> warnings;
  std::set<std::string_view> seen;
  for (const Catalog* catalog : {&source, &target}) {
    for (const std::string& warning : catalog->warnings) {
      if (seen.insert(warning).second) warnings.push_back(warning);
    }
  }
  return warnings;
}

std::string short_of_space(std::int64_t needed, std::int64_t free) {
  return fmt::format("the output needs {} bytes, the disk has {} free", needed, free);
}

CopyResult describe(const Catalog& source, const Catalog& target, const Plan& plan, std::int64_t free_bytes) {
  CopyResult result;
  result.format = target.format;
  result.files = target.files;
  result.tensors = static_cast<std::int64_t>(target.tensors.size());
  result.objects = static_cast<std::int64_t>(target.objects.size());
  result.bytes_to_read = plan.bytes_to_read;
  result.bytes_to_write = plan.bytes_to_write;
  result.copies = plan.copies;
  result.tiles = plan.tile_count;
  result.memory_bytes = plan.memory_bytes;
  result.free_bytes = free_bytes;
  result.warnings = all_warnings(source, target);
  return result;
}

/// What every rank decides alike before a byte moves.
struct Prepared {
  Catalog target;
  std::unique_ptr<Writer> writer;
  OutputOptions output;
  Plan plan;
  std::int64_t free_bytes = 0;
};

Prepared prepare(LocalDisk& fs, const CopyJob& job, int rank, int threads) {
  const Catalog& source = job.reader->catalog();
  const Selection selection = select(source, job.selection);
  Prepared prepared;
  prepared.target = make_target(source, selection, job.layout, job.traits);
  prepared.writer = job.make_writer(prepared.target);
  prepared.writer->place(prepared.target);
  prepared.output = job.output;
  prepared.output.folder = prepared.writer->is_folder();
  check_destination(fs, job.destination, job.sources, prepared.output);
  job.reader->locate(needed_tensors(prepared.target));
  prepared.plan = plan_copies(source, prepared.target,
                              {.max_memory_bytes = job.max_memory_bytes,
                               .threads = threads,
                               .checksums = prepared.writer->needs_checksums(),
                               .only_rank = job.by_owner ? rank : -1});
  prepared.free_bytes = fs.free_bytes(parent_path(job.destination));
  return prepared;
}

/// Ranks that saw other files or were given other options planned something else.
std::string fingerprint(const Prepared& prepared, bool by_owner) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  const auto add = [&](const auto&... numbers) {
    const std::array<std::int64_t, sizeof...(numbers)> all{static_cast<std::int64_t>(numbers)...};
    hasher.update(std::as_bytes(std::span(all)));
  };
  for (const File& file : prepared.target.files) {
    hasher.update(file.path);
    add(file.bytes);
  }
  for (const Storage& storage : prepared.target.storages) add(storage.offset, storage.bytes, storage.file);
  if (by_owner) return hasher.finish_hex();  // Plans differ.
  const Plan& plan = prepared.plan;
  add(plan.units.size(), plan.tile_count, plan.bytes_to_read, plan.bytes_to_write, plan.copies);
  for (const Unit& unit : plan.units) add(unit.first_tile, unit.from, unit.to);
  return hasher.finish_hex();
}

/// One number of rank 0's, on all ranks.
int from_rank_zero(Group& group, int number) {
  group.broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
  return number;
}

/// One run of a prepared job, by all ranks of a group.
class Run {
 public:
  Run(LocalDisk& fs, Group& group, const CopyJob& job, Prepared& prepared, Progress& progress)
      : fs_(fs),
        group_(group),
        job_(job),
        prepared_(prepared),
        source_checks_(job.reader->catalog()),
        progress_(progress) {}

  void run() {
    try {
      begin();
      copy();
      join_source_checks();
      join_checksums();
      sum_progress();
      step("finish",
           [&] { is_root() ? prepared_.writer->finish(prepared_.target, *checksums_, files_) : part_->finish(); });
      step("commit", [] {});  // All are here and well. From now on nobody can stop it.
      commit();
    } catch (const Error&) {
      clean_up();
      throw;
    }
  }

 private:
  /// Rank 0 takes away what was begun, and the others stay until it says so: mpirun kills all ranks when one has ended.
  void clean_up() noexcept {
    files_.clear();
    part_.reset();
    output_.reset();
    std::byte done{};
    try {
      group_.set_timeout(is_root() ? kTellCleanUp : kCleanUp);
      group_.broadcast({&done, 1}, 0);
    } catch (const Error&) {
      return;  // A rank is lost, and the cause known already.
    }
  }

  bool is_root() const { return group_.rank() == 0; }

  void step(std::string_view name, const std::function<void()>& work) {
    collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token& stop) {
      tell_step(job_, name);
      check_stop(stop);
      work();
    });
  }

  /// A rank that is lost meanwhile does not make a failure of what is on disk.
  void commit() {
    bool committed = false;
    try {
      collective_step(group_, {}, [&](const std::stop_token&) {
        if (!is_root()) return;
        output_->commit();
        committed = true;
      });
    } catch (const Error&) {
      if (!committed) throw;
    }
  }

  void begin() {
    step("begin", [&] {
      if (is_root()) begin_as_root();
    });
    if (group_.size() == 1) return;
    const Bytes staged =
        broadcast(group_, is_root() ? std::as_bytes(std::span(output_->staged())) : std::span<const std::byte>(), 0);
    collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) {
      if (is_root()) return;
      part_.emplace(fs_, std::string(reinterpret_cast<const char*>(staged.data()), staged.size()), prepared_.output);
      open_part();
    });
  }

  /// Opens the files that the plan writes to; the others stay null.
  void open_part() {
    const Catalog& target = prepared_.target;
    files_.resize(target.files.size());
    for (const Piece& piece : prepared_.plan.to_pieces) {
      const std::uint32_t file = target.storages[piece.storage].file;
      if (files_[file] == nullptr) files_[file] = &part_->file(target.files[file].path);
    }
  }

  void begin_as_root() {
    output_ = begin_output(fs_, job_.destination, prepared_.output);
    // After begin_output, which removes what killed runs left behind.
    const std::int64_t needed = bytes_of(prepared_.target.files);
    const std::int64_t free = fs_.free_bytes(parent_path(job_.destination));
    if (free < needed) {
      throw Error(ErrorCode::kResource, short_of_space(needed, free))
          .in_file(job_.destination)
          .expected(needed)
          .found(free)
          .hint("free some space, or write to another disk");
    }
    files_.reserve(prepared_.target.files.size());
    for (const File& file : prepared_.target.files) {
      check_stop(job_.stop);
      files_.push_back(&output_->file(file.path, file.bytes));
    }
  }

  TileRange own_tiles() const {
    const Plan& plan = prepared_.plan;
    return job_.by_owner ? TileRange{0, plan.tile_count} : tiles_of_rank(plan, group_.rank(), group_.size());
  }

  void copy() {
    CollectiveStepOptions options{.stop = job_.stop};
    options.done_bytes = [this] { return progress_.bytes_written.load(); };
    options.on_sum = [this](std::int64_t sum) { progress_.others_bytes = sum - progress_.bytes_written.load(); };
    collective_step(group_, options, [&](const std::stop_token& stop) {
      tell_step(job_, "copy");
      const ExecuteOptions how{.threads = job_.threads,
                               .max_memory_bytes = job_.max_memory_bytes,
                               .checksums = prepared_.writer->needs_checksums(),
                               .tiles = own_tiles(),
                               .cloner = &fs_,
                               .source_checks = &source_checks_,
                               .stop = stop};
      checksums_ =
          execute(prepared_.plan, job_.reader->catalog(), *job_.reader, prepared_.target, files_, how, progress_);
    });
  }

  void join_checksums() {
    if (group_.size() == 1 || !prepared_.writer->needs_checksums()) return;
    for (const std::vector<CrcRun>& runs : gather_runs(checksums_->recorded())) checksums_->record_all(runs);
  }

  /// Storages that several ranks read a part of.
  void join_source_checks() {
    if (group_.size() == 1) return;
    const std::vector<Storage>& storages = job_.reader->catalog().storages;  // The same on all ranks.
    if (std::ranges::none_of(storages, [](const Storage& each) { return each.crc32.has_value(); })) return;
    const std::vector<std::vector<CrcRun>> gathered = gather_runs(source_checks_.incomplete());
    collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) {
      for (const std::vector<CrcRun>& runs : gathered) source_checks_.add_all(runs);
    });
  }

  /// The other ranks' runs, on rank 0.
  std::vector<std::vector<CrcRun>> gather_runs(const std::vector<CrcRun>& own) {
    std::vector<std::vector<CrcRun>> gathered;
    const std::vector<Bytes> pieces = gather(group_, std::as_bytes(std::span(own)), 0);
    for (std::size_t rank = 1; rank < pieces.size(); ++rank) {
      std::vector<CrcRun>& runs = gathered.emplace_back(pieces[rank].size() / sizeof(CrcRun));
      if (!runs.empty()) std::memcpy(runs.data(), pieces[rank].data(), runs.size() * sizeof(CrcRun));
    }
    return gathered;
  }

  void sum_progress() {
    if (group_.size() == 1) return;
    const std::array counters{&progress_.bytes_read,     &progress_.bytes_written, &progress_.bytes_cloned,
                              &progress_.cast_overflows, &progress_.read_calls,    &progress_.write_calls};
    std::array<std::int64_t, counters.size()> own{};
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = counters[i]->load();
    std::vector<std::array<std::int64_t, counters.size()>> all(static_cast<std::size_t>(group_.size()));
    group_.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    if (!is_root()) return;
    progress_.others_bytes = 0;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      for (std::size_t i = 0; i < own.size(); ++i) *counters[i] += all[rank][i];
    }
  }

  LocalDisk& fs_;
  Group& group_;
  const CopyJob& job_;
  Prepared& prepared_;
  SourceChecks source_checks_;
  Progress& progress_;
  std::unique_ptr<Output> output_;  ///< Rank 0's.
  std::optional<OutputPart> part_;  ///< The others'.
  std::vector<FileWriter*> files_;
  std::unique_ptr<StorageChecksums> checksums_;
};

}  // namespace

CopyResult run_copy_job(LocalDisk& fs, Group& group, const CopyJob& job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan) {
  const int threads = from_rank_zero(group, job.threads);  // Tiles depend on it.
  Prepared prepared;
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) {
    tell_step(job, "plan");
    prepared = prepare(fs, job, group.rank(), threads);
  });
  if (group.size() > 1) {
    expect_same(group,
                fmt::format("{} files of {} bytes ({})", prepared.target.files.size(), bytes_of(prepared.target.files),
                            fingerprint(prepared, job.by_owner)),
                ErrorCode::kInvalidArgument, "they would copy different things");
  }
  CopyResult result = describe(job.reader->catalog(), prepared.target, prepared.plan, prepared.free_bytes);
  if (job.dry_run) {
    const std::int64_t needed = bytes_of(prepared.target.files);
    if (prepared.free_bytes < needed) result.warnings.push_back(short_of_space(needed, prepared.free_bytes));
    return result;
  }
  if (on_plan) on_plan(result);
  Run(fs, group, job, prepared, progress).run();
  return result;
}

}  // namespace shard
