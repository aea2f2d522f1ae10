#include "libshard/job/copy_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "libshard/core/error.h"
#include "libshard/exec/parallel.h"
#include "libshard/job/crc_exchange.h"
#include "libshard/job/file_owners.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

/// How long ranks wait for rank 0 to clean up after a failure, and it for them to hear that it has.
constexpr std::chrono::milliseconds kCleanUp{5000}, kTellCleanUp{100};

std::vector<bool> files_of(const std::vector<int>& owners, int rank) {
  std::vector<bool> is_own;
  for (const int owner : owners) is_own.push_back(owner == rank);
  return is_own;
}

}  // namespace

void tell_step(const CopyJob& job, std::string_view step) {
  if (job.on_step) job.on_step(step);
}

CopyRun::CopyRun(OutputStore& store, Group& group, const CopyJob& job, PreparedCopy& prepared, Progress& progress)
    : store_(store),
      group_(group),
      job_(job),
      prepared_(prepared),
      owners_(file_owners(prepared.target, group.size())),
      source_checks_(job.reader->catalog()),
      progress_(progress) {}

void CopyRun::run() {
  try {
    begin();
    copy();
    exchange_source_checks();
    exchange_checksums();
    sum_progress();
    finish();
    step("commit", [](const std::stop_token&) {});  // All are here and well. From now on nobody can stop it.
    commit();
  } catch (const Error&) {
    clean_up();
    throw;
  }
}

/// Rank 0 takes away what was begun, and the others stay until it says so: mpirun kills all ranks when one has ended.
void CopyRun::clean_up() noexcept {
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

void CopyRun::step(std::string_view name, const std::function<void(const std::stop_token&)>& work) {
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token& stop) {
    tell_step(job_, name);
    check_stop(stop);
    work(stop);
  });
}

void CopyRun::begin() {
  step("begin", [&](const std::stop_token&) {
    if (!is_root()) return;
    std::vector<OutputFile> files;
    for (const File& file : prepared_.target.files) files.push_back({file.path, file.bytes});
    output_ = store_.begin(files, prepared_.writer->is_folder());
  });
  const Bytes token = broadcast(group_, is_root() ? output_->token() : Bytes(), 0);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token& stop) {
    part_ = store_.part(token);
    begin_own_files(stop);
  });
  if (group_.size() == 1) return;
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) { open_others(); });
}

void CopyRun::begin_own_files(const std::stop_token& stop) {
  const std::vector<File>& files = prepared_.target.files;
  files_.resize(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    check_stop(stop);
    if (is_own(i)) files_[i] = &part_->create({files[i].path, files[i].bytes});
  }
  for_each_own_file(
      stop, [&](std::uint32_t file, FileWriter& to) { prepared_.writer->begin_file(prepared_.target, file, to); });
}

/// Those that the plan writes to.
void CopyRun::open_others() {
  const Catalog& target = prepared_.target;
  for (const Piece& piece : prepared_.plan.to_pieces) {
    const std::uint32_t file = target.storages[piece.storage].file;
    if (files_[file] == nullptr) files_[file] = &part_->open(target.files[file].path);
  }
}

void CopyRun::for_each_own_file(const std::stop_token& stop,
                                const std::function<void(std::uint32_t, FileWriter&)>& work) {
  std::vector<std::uint32_t> own;
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    if (is_own(i)) own.push_back(i);
  }
  for_each_index(own.size(), job_.threads, stop,
                 [&]() -> IndexWorker { return [&](std::size_t i) { work(own[i], *files_[own[i]]); }; });
}

TileRange CopyRun::own_tiles() const {
  const Plan& plan = prepared_.plan;
  return job_.by_owner ? TileRange{0, plan.tile_count} : tiles_of_rank(plan, group_.rank(), group_.size());
}

void CopyRun::copy() {
  framing_ = std::make_unique<Framing>(prepared_.target, *prepared_.writer, files_of(owners_, group_.rank()));
  CollectiveStepOptions options{.stop = job_.stop};
  options.done_bytes = [this] { return progress_.bytes_written.load(); };
  options.on_sum = [this](std::int64_t sum) { progress_.others_bytes = sum - progress_.bytes_written.load(); };
  collective_step(group_, options, [&](const std::stop_token& stop) {
    tell_step(job_, "copy");
    const ExecuteOptions how{.threads = job_.threads,
                             .max_memory_bytes = job_.max_memory_bytes,
                             .checksums = prepared_.writer->needs_checksums(),
                             .tiles = own_tiles(),
                             .cloner = job_.cloner,
                             .source_checks = &source_checks_,
                             .framing = framing_.get(),
                             .stop = stop};
    checksums_ =
        execute(prepared_.plan, job_.reader->catalog(), *job_.reader, prepared_.target, files_, how, progress_);
  });
}

/// Storages that several ranks read a part of.
void CopyRun::exchange_source_checks() {
  if (group_.size() == 1) return;
  const Catalog& source = job_.reader->catalog();  // The same on all ranks.
  if (std::ranges::none_of(source.storages, [](const Storage& each) { return each.crc32.has_value(); })) return;
  const std::vector<CrcRun> received =
      send_to_owners(group_, source_checks_.incomplete(), source.storages, file_owners(source, group_.size()));
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) { source_checks_.add_all(received); });
}

void CopyRun::exchange_checksums() {
  if (group_.size() == 1 || !prepared_.writer->needs_checksums()) return;
  checksums_->record_all(send_to_owners(group_, checksums_->recorded(), prepared_.target.storages, owners_));
}

void CopyRun::sum_progress() {
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

void CopyRun::finish() {
  step("finish", [&](const std::stop_token& stop) {
    for_each_own_file(stop, [&](std::uint32_t file, FileWriter& to) {
      framing_->write_rest(file, *checksums_, to);
      prepared_.writer->finish_file(prepared_.target, file, *checksums_, to);
    });
    part_->finish();
  });
}

/// A rank that is lost meanwhile does not make a failure of what is on disk.
void CopyRun::commit() {
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

}  // namespace shard
