#include "libshard/job/copy_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <set>
#include <span>
#include <string>

#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

class CommitWatch final : public StepTraffic {
 public:
  explicit CommitWatch(int ranks) : has_committed_(static_cast<std::size_t>(ranks)) {}
  /// Records that this rank has committed. Threads: any.
  void set_committed() { is_own_ = true; }
  /// The error after the failure of a rank. It names the ranks that have committed, as far as `rank` knows.
  Error lost(int rank) const;

  void begin(StepHandle&) override {}
  void end() override {}
  void stop() override {}
  std::int64_t word() override { return is_own_ ? kCommitted : 0; }
  bool move(Group& group, std::span<const std::int64_t> words) override;

 private:
  static constexpr std::int64_t kCommitted = -1;  ///< A state, not a count: the rank has no data to send.

  std::atomic<bool> is_own_{false};
  std::vector<bool> has_committed_;  ///< By rank, as of the last exchange.
};

std::string list_of(const std::vector<bool>& ranks, bool wanted) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank] == wanted) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text.empty() ? "none" : text;
}

bool CommitWatch::move(Group&, std::span<const std::int64_t> words) {
  for (std::size_t rank = 0; rank < words.size(); ++rank) has_committed_[rank] = words[rank] == kCommitted;
  return false;
}

Error CommitWatch::lost(int rank) const {
  std::vector<bool> known = has_committed_;
  known[static_cast<std::size_t>(rank)] = is_own_;
  return Error(ErrorCode::kPeer, "a rank died while the ranks were committing their outputs")
      .because(fmt::format("committed on ranks: {}; unknown on ranks: {}", list_of(known, true), list_of(known, false)))
      .suggest(Remedy::kReplaceDestination);
}

/// Sends each run to `owners[storages[run.storage].file]`. Collective.
/// \returns the runs that other ranks sent to this one. \throws Error kPeer
/// Cost: an exchange of 8 bytes with each rank, then the runs themselves.
std::vector<CrcRun> send_to_owners(Group& group, std::span<const CrcRun> runs, std::span<const Storage> storages,
                                   std::span<const int> owners) {
  std::vector<Bytes> outgoing(static_cast<std::size_t>(group.size()));
  for (const CrcRun& run : runs) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(&run, 1));
    Bytes& to = outgoing[static_cast<std::size_t>(owners[storages[run.storage].file])];
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  std::vector<CrcRun> incoming;
  for (const Bytes& each : all_to_all(group, outgoing)) {
    const std::size_t begin = incoming.size();
    incoming.resize(begin + each.size() / sizeof(CrcRun));
    std::ranges::copy(each, std::as_writable_bytes(std::span(incoming).subspan(begin)).begin());
  }
  return incoming;
}

}  // namespace

std::vector<std::uint8_t> PreparedCopy::storages_of(int rank, const Catalog& catalog) const {
  std::vector<std::uint8_t> are_own;
  for (std::size_t i = 0; i < catalog.storages.size(); ++i) {
    const int filled_by = shares.storage_ranks.empty() ? owners[catalog.storages[i].file] : shares.storage_ranks[i];
    are_own.push_back(filled_by == rank ? 1 : 0);
  }
  return are_own;
}

void notify(const CopyJob& job, std::string_view step) {
  if (job.on_step) job.on_step(step);
}

CopyRun::CopyRun(OutputStore& store, Group& group, const CopyJob& job, PreparedCopy& prepared,
                 const OutputPlaces& places, std::unique_ptr<LeftOutput> left, Progress& progress)
    : store_(store),
      group_(group),
      job_(job),
      prepared_(prepared),
      places_(places),
      source_checks_(job.reader->catalog()),
      progress_(progress),
      left_(std::move(left)) {
  if (job.manifest) manifest_.emplace(*job.manifest, prepared.target, prepared.file_places);
}

void CopyRun::run() {
  try {
    begin();
    copy();
    exchange_source_checks();
    exchange_checksums();
    sum_progress();
    finish();
    if (manifest_) make_manifest();
    if (store_.traits().has_receipts) pass_receipts();
    step("commit", [this](const std::stop_token&) {
      if (job_.watched != nullptr) job_.watched->expect_unchanged();
      if (output_ != nullptr) output_->prepare();
    });  // All ranks have finished without errors. From here on, the commit cannot be interrupted.
    places_.is_one ? commit() : commit_everywhere();
  } catch (const Error& error) {
    const bool is_cut_short = error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kPeer;
    if (job_.resume && is_cut_short && !is_committed_) {
      if (journal_ != nullptr) journal_->end();
      if (output_ != nullptr) output_->leave();
    }
    clean_up();
    throw;
  }
}

/// The roots remove the staged output, and the other ranks wait for them.
void CopyRun::clean_up() noexcept {
  files_.clear();
  shared_.clear();
  journal_.reset();
  part_.reset();
  output_.reset();
  try {
    places_.await_clean_up(group_);
  } catch (const Error&) {
    return;  // A rank failed, and the cause was reported already.
  }
}

void CopyRun::step(std::string_view name, const std::function<void(const std::stop_token&)>& work) {
  collective_step(group_, {.stop = job_.stop, .awaited = job_.awaited}, [&](const std::stop_token& stop) {
    notify(job_, name);
    check_stop(stop);
    work(stop);
  });
}

void CopyRun::begin() {
  Bytes own_token;  // Empty if no file is stored at this rank's place.
  step("begin", [&](const std::stop_token&) {
    if (!is_root()) return;
    std::vector<OutputFile> files;
    for (std::size_t i = 0; i < prepared_.target.files.size(); ++i) {
      const File& file = prepared_.target.files[i];
      if (places_.root(prepared_.owners[i]) == group_.rank()) {
        files.push_back({file.path, file.bytes, false, prepared_.owners[i] == group_.rank()});
      }
    }
    const bool has_manifest = manifest_ && places_.root(prepared_.manifest_owner) == group_.rank();
    if (has_manifest) files.push_back(manifest_output());
    if (has_manifest) files.back().is_roots = prepared_.manifest_owner == group_.rank();
    // Every place receives its folder. A single file is stored only at its owner's place, and an old file must not
    // remain at the others.
    const bool is_folder = prepared_.writer->is_folder();
    output_ = is_folder || !files.empty() ? store_.begin(files, is_folder, std::move(left_)) : store_.begin_removal();
    if (output_ != nullptr) own_token = output_->token();
  });
  const Bytes token = places_.share_token(group_, own_token);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token& stop) {
    if (!token.empty()) part_ = store_.part(token);
    if (part_ != nullptr && prepared_.journal) open_journal();
    begin_own_files(stop);
  });
  if (group_.size() == 1 || !places_.is_one || job_.topology.whole_files) return;
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) { open_others(); });
}

OutputFile CopyRun::manifest_output() const {
  const bool is_beside = !prepared_.writer->is_folder();
  return {is_beside ? std::string(kManifestSuffix) : prepared_.manifest->path, prepared_.manifest->bytes, is_beside};
}

/// Opens a journal for this rank and run, which includes the records of earlier runs.
void CopyRun::open_journal() {
  const int rank = group_.rank();
  const std::vector<OutputNote> notes = part_->notes();
  std::set<std::string_view> taken;
  for (const OutputNote& note : notes) taken.insert(note.name);
  std::size_t run = 0;
  while (taken.contains(journal_name(run, rank))) ++run;
  journal_ = std::make_unique<Journal>(*prepared_.journal,
                                       [this, run, rank] { return part_->create_note(journal_name(run, rank)); });
  for (const OutputNote& note : notes) {
    // If plans differ, the numbers of tiles are meaningful only to their own rank.
    if (job_.topology.plans_differ() && rank_of_journal(note.name) != rank) continue;
    journal_->read(note.content, own_tiles(), job_.reader->catalog().storages);
  }
}

void CopyRun::begin_own_files(const std::stop_token& stop) {
  const std::vector<File>& files = prepared_.target.files;
  files_.resize(files.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    check_stop(stop);
    if (is_shared(i)) {
      files_[i] = &create_share(i);
    } else if (is_own(i)) {
      files_[i] = &create_own(i);
    }
  }
  if (manifest_ && prepared_.manifest_owner == group_.rank()) manifest_writer_ = &part_->create(manifest_output());
  for_each_own_file(stop, [&](std::uint32_t file, FileWriter& to) {
    if (is_own(file)) prepared_.writer->begin_file(prepared_.target, file, to);
  });
}

/// Creates this rank's share of a file, which may be empty.
FileWriter& CopyRun::create_share(std::uint32_t file) {
  const File& made = prepared_.target.files[file];
  OutputFile output{.path = made.path, .bytes = made.bytes, .share = prepared_.shares.of(file, group_.rank())};
  const bool is_empty = output.share.begin == output.share.end;
  if (manifest_) output.on_block = manifest_->block_sink(file);
  shared_.resize(files_.size());
  shared_[file] = std::make_unique<SharedFile>(is_empty ? nullptr : &part_->create(output), output.share);
  return *shared_[file];
}

FileWriter& CopyRun::create_own(std::uint32_t file) {
  const File& made = prepared_.target.files[file];
  OutputFile output{made.path, made.bytes};
  if (!store_.traits().passes_blocks) return hashed(file, part_->create(output));
  if (manifest_) output.on_block = manifest_->block_sink(file);
  return part_->create(output);
}

FileWriter& CopyRun::hashed(std::uint32_t file, FileWriter& to) {
  return manifest_ ? manifest_->hashing(file, to) : to;
}

/// Opens the other files to which the plan writes.
void CopyRun::open_others() {
  const Catalog& target = prepared_.target;
  for (const Piece& piece : prepared_.plan.to_pieces) {
    const std::uint32_t file = target.storages[piece.storage].file;
    if (files_[file] == nullptr) files_[file] = &hashed(file, part_->open(target.files[file].path));
  }
}

void CopyRun::for_each_own_file(const std::stop_token& stop,
                                const std::function<void(std::uint32_t, FileWriter&)>& work) {
  std::vector<std::uint32_t> own;
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    if (is_own(i) || is_shared(i)) own.push_back(i);
  }
  for_each_index(own.size(), job_.threads, stop,
                 [&]() -> IndexWorker { return [&](std::size_t i) { work(own[i], *files_[own[i]]); }; });
}

TileRange CopyRun::own_tiles() const {
  const Plan& plan = prepared_.plan;
  return job_.topology.plans_differ() ? TileRange{0, plan.tile_count}
                                      : tiles_of_rank(plan, group_.rank(), group_.size());
}

void CopyRun::prepare_exchange() {
  const bool is_by_link = job_.device != nullptr && (group_.backend() == "nccl" || group_.backend() == "threads");
  if (is_by_link) link_ = job_.device->connect(group_, job_.timeout);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) {
    const std::int64_t unit_bytes = exchange_unit(prepared_.memory_bytes);
    transport_ = is_by_link ? transport_by_link(*job_.device, *link_, unit_bytes) : transport_by_group();
    exchange_ = std::make_unique<Exchange>(ExchangeOf{.plan = prepared_.plan,
                                                      .reader = *job_.reader,
                                                      .holders = *prepared_.holders,
                                                      .source_checks = source_checks_,
                                                      .progress = progress_,
                                                      .transport = *transport_,
                                                      .max_memory_bytes = prepared_.memory_bytes,
                                                      .threads = job_.threads},
                                           group_.rank(), group_.size());
  });
}

void CopyRun::copy() {
  framing_ = std::make_unique<Framing>(prepared_.target, *prepared_.writer,
                                       prepared_.storages_of(group_.rank(), prepared_.target));
  if (exchanges()) prepare_exchange();
  CollectiveStepOptions options{.stop = job_.stop};
  options.done_bytes = [this] { return progress_.done_bytes(); };
  options.on_sum = [this](std::int64_t sum) { progress_.others_bytes = sum - progress_.done_bytes(); };
  options.traffic = exchange_.get();
  options.awaited = job_.awaited;
  collective_step(group_, options, [&](const std::stop_token& stop) {
    notify(job_, "copy");
    const ExecuteOptions how{.threads = job_.threads,
                             .max_memory_bytes = job_.topology.copy_memory(prepared_.memory_bytes),
                             .checksums = prepared_.writer->needs_checksums(),
                             .tiles = own_tiles(),
                             .feed = exchange_.get(),
                             .reflink_disk = job_.reflink_disk,
                             .device = job_.device,
                             .source_checks = &source_checks_,
                             .log = journal_.get(),
                             .framing = framing_.get(),
                             .stop = stop};
    const auto run = [&] {
      checksums_ =
          execute(prepared_.plan, job_.reader->catalog(), *job_.reader, prepared_.planned(), files_, how, progress_);
    };
    exchanges() ? exchange_->run(run, stop) : run();
  });
}

/// Combines the checksums of storages of which several ranks read a part, and completes those of which little is left.
void CopyRun::exchange_source_checks() {
  const Catalog& source = job_.reader->catalog();  // The catalog is the same on all ranks.
  if (std::ranges::none_of(source.storages, [](const Storage& each) { return each.crc32.has_value(); })) return;
  const std::vector<int> owners = file_owners(source, group_.size());
  std::vector<CrcRun> received;
  if (group_.size() > 1) received = send_to_owners(group_, source_checks_.incomplete(), source.storages, owners);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token& stop) {
    source_checks_.add_all(received);
    const auto is_own = [&](const Storage& each) { return owners[each.file] == group_.rank(); };
    if (!exchanges()) source_checks_.read_rest(*job_.reader, is_own, stop);  // Otherwise ranks lack others' files.
  });
}

void CopyRun::exchange_checksums() {
  if (group_.size() == 1 || !prepared_.writer->needs_checksums()) return;
  const std::vector<CrcRun> received =
      send_to_owners(group_, checksums_->recorded(), prepared_.target.storages, prepared_.owners);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) { checksums_->record_all(received); });
}

void CopyRun::sum_progress() {
  if (group_.size() == 1) return;
  const std::array counters{&progress_.bytes_read,     &progress_.bytes_written, &progress_.bytes_cloned,
                            &progress_.cast_overflows, &progress_.read_calls,    &progress_.write_calls,
                            &progress_.bytes_sent,     &progress_.bytes_kept};
  std::array<std::int64_t, counters.size()> own{};
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = counters[i]->load();
  const auto all = all_gather_values(group_, own);
  if (group_.rank() != 0) return;
  const std::int64_t own_bytes = progress_.done_bytes();
  progress_.others_bytes = 0;  // A progress bar that is drawn at the same time never shows more than the sum.
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < own.size(); ++i) *counters[i] += all[rank][i];
  }
  progress_.is_summed = true;
  progress_.others_bytes = progress_.done_bytes() - own_bytes;
}

void CopyRun::finish() {
  step("finish", [&](const std::stop_token& stop) {
    for_each_own_file(stop, [&](std::uint32_t file, FileWriter& to) {
      framing_->write_rest(file, *checksums_, to);
      if (is_own(file)) prepared_.writer->finish_file(prepared_.target, file, *checksums_, to);
    });
  });
  if (!prepared_.shares.of_files.empty()) exchange_shared_bytes();
  collective_step(group_, {.stop = job_.stop, .awaited = job_.awaited}, [&](const std::stop_token&) {
    if (!manifest_ && part_ != nullptr) part_->finish();
    if (manifest_ && part_ != nullptr) part_->pass_blocks();
    if (manifest_ && group_.size() > 1) sync_others();
  });
}

/// Sends the bytes that this rank wrote to others' shares to those ranks.
void CopyRun::exchange_shared_bytes() {
  std::vector<WireWriter> outgoing(static_cast<std::size_t>(group_.size()));
  for (std::uint32_t file = 0; file < shared_.size(); ++file) {
    if (shared_[file] == nullptr) continue;
    for (const auto& [offset, bytes] : shared_[file]->take_kept()) {
      for (std::int64_t done = 0; done < std::ssize(bytes);) {  // They may belong to several ranks.
        const int rank = prepared_.shares.rank_at(file, offset + done);
        const std::int64_t end = std::min(offset + std::ssize(bytes), prepared_.shares.of(file, rank).end);
        WireWriter& to = outgoing[static_cast<std::size_t>(rank)];
        to.number(file);
        to.number(offset + done);
        to.text(as_text(
            std::span(bytes).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(end - offset - done))));
        done = end - offset;
      }
    }
  }
  std::vector<Bytes> messages;
  for (WireWriter& each : outgoing) messages.push_back(each.take());
  const std::vector<Bytes> received = all_to_all(group_, messages);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) { write_received(received); });
}

void CopyRun::write_received(const std::vector<Bytes>& messages) {
  for (const Bytes& message : messages) {
    for (WireReader from(message); !from.at_end();) {
      const auto file = static_cast<std::uint32_t>(from.number_below(std::ssize(files_)));
      const std::int64_t offset = from.number();
      const std::string bytes = from.text();
      const ByteRange share = is_shared(file) ? prepared_.shares.of(file, group_.rank()) : ByteRange{};
      if (offset < share.begin || offset > share.end - std::ssize(bytes)) {
        throw Error(ErrorCode::kPeer, "bytes received from another rank do not match the plan");
      }
      files_[file]->write_at(offset, std::as_bytes(std::span(bytes)));
    }
  }
}

/// The owner of a file, perhaps on a different host, reads it back.
void CopyRun::sync_others() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i] != nullptr && !is_own(i)) files_[i]->sync();
  }
}

void CopyRun::make_manifest() {
  manifest_->share(group_);
  step("manifest", [&](const std::stop_token& stop) {
    manifest_->read_back(files_, prepared_.owners, group_.rank(), job_.threads, stop);
  });
  const std::string text = manifest_->finish(group_);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) {
    if (manifest_writer_ != nullptr) manifest_writer_->write_at(0, std::as_bytes(std::span(text)));
    if (part_ != nullptr) part_->finish();
  });
}

/// Sends the receipts of all ranks' parts to the root.
void CopyRun::pass_receipts() {
  const std::vector<Bytes> all = gather(group_, part_ == nullptr ? Bytes() : part_->receipt(), 0);
  collective_step(group_, {.stop = job_.stop}, [&](const std::stop_token&) {
    if (output_ == nullptr) return;
    for (const Bytes& receipt : all) output_->accept(receipt);
  });
}

/// If a rank fails during the commit, the data on disk is still complete, so this is not an error.
void CopyRun::commit() {
  try {
    collective_step(group_, {}, [&](const std::stop_token&) {
      if (!is_root()) return;
      output_->commit();
      is_committed_ = true;
    });
  } catch (const Error&) {
    if (!is_committed_) throw;
  }
}

/// All outputs are prepared, so each rank commits regardless of the others. Ranks that lose contact then behave
/// identically. If a commit fails and the rank can still report it, all ranks roll back.
void CopyRun::commit_everywhere() {
  CommitWatch watch(group_.size());
  try {
    collective_step(group_, {.traffic = &watch, .awaited = job_.awaited}, [&](const std::stop_token&) {
      notify(job_, "publish");
      if (output_ != nullptr) output_->commit();
      is_committed_ = true;
      watch.set_committed();
    });
    return;
  } catch (const Error& cause) {
    if (cause.code() != ErrorCode::kPeer) {
      take_back_everywhere();
      throw;
    }
  }
  throw watch.lost(group_.rank());
}

void CopyRun::take_back_everywhere() {
  collective_step(group_, {}, [&](const std::stop_token&) {
    if (is_committed_ && output_ != nullptr) output_->take_back();
  });
}

}  // namespace shard
