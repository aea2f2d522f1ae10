#include "libshard/exec/checksums.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"

namespace shard {

namespace {

constexpr std::int64_t kRestBlock = 64 << 10;

/// The CRC-32 of `bytes` zeros: the initial state, all ones, advanced over them, and the final XOR with all ones.
std::uint32_t crc32_of_zeros(std::int64_t bytes) { return crc32_combine(UINT32_MAX, UINT32_MAX, bytes); }

/// Bytes [from, to) of the storage, which are a part of the read.
ReadBytes part_of(const ReadBytes& read, std::int64_t from, std::int64_t to) {
  const auto skipped = static_cast<std::size_t>(from - read.offset_bytes);
  return {from, read.bytes.subspan(skipped, static_cast<std::size_t>(to - from))};
}

/// The error for a run that another rank sent.
Error misfit(const CrcRun& run) {
  return Error(ErrorCode::kPeer, "cannot use a checksum from another rank: its bytes are outside every storage")
      .found(fmt::format("{} bytes at {} in storage {}", run.bytes, run.offset_bytes, run.storage));
}

}  // namespace

bool fits(const CrcRun& run, std::span<const Storage> storages) {
  if (run.storage >= storages.size() || run.offset_bytes < 0 || run.bytes <= 0) return false;
  const std::int64_t bytes = storages[run.storage].bytes;
  return run.bytes <= bytes && run.offset_bytes <= bytes - run.bytes;
}

std::optional<std::uint32_t> StorageChecksums::record(std::uint32_t storage, std::int64_t offset_bytes,
                                                      std::int64_t bytes, std::uint32_t crc) {
  if (known_.contains(storage)) return std::nullopt;
  // A run that is the whole storage, which is the usual case, needs no lock, because no other thread records this
  // storage.
  if (bytes == storages_[storage].bytes) {
    whole_[storage] = crc;
    is_whole_[storage] = 1;
    return crc;
  }
  const std::scoped_lock lock(mutex_);
  CrcRuns& runs = begun_[storage];
  runs.add(offset_bytes, bytes, crc);
  if (!runs.covers(storages_[storage].bytes)) return std::nullopt;
  whole_[storage] = runs.runs().begin()->second.crc;
  is_whole_[storage] = 1;
  begun_.erase(storage);
  return whole_[storage];
}

void StorageChecksums::set_known(std::uint32_t storage, std::uint32_t crc) {
  known_.insert(storage);
  whole_[storage] = crc;
  is_whole_[storage] = 1;
}

std::vector<CrcRun> StorageChecksums::recorded() const {
  std::vector<CrcRun> all;
  for (std::uint32_t storage = 0; storage < whole_.size(); ++storage) {
    if (is_whole_[storage] != 0) all.push_back({0, storages_[storage].bytes, storage, whole_[storage]});
  }
  for (const auto& [storage, runs] : begun_) {
    for (const auto& [offset, run] : runs.runs()) all.push_back({offset, run.bytes, storage, run.crc});
  }
  return all;
}

void StorageChecksums::record_all(std::span<const CrcRun> runs) {
  for (const CrcRun& run : runs) {
    if (!fits(run, storages_)) throw misfit(run);
    record(run.storage, run.offset_bytes, run.bytes, run.crc);
  }
}

std::uint32_t StorageChecksums::crc32_of(std::uint32_t storage) const {
  if (is_whole_[storage] != 0) return whole_[storage];
  // Bytes without a record are zeros (holes of the file), so their CRC-32 is computed rather than read.
  std::uint32_t crc = 0;
  std::int64_t done = 0;
  const auto skip_to = [&](std::int64_t offset) {
    if (offset > done) crc = crc32_combine(crc, crc32_of_zeros(offset - done), offset - done);
    done = offset;
  };
  if (const auto begun = begun_.find(storage); begun != begun_.end()) {
    for (const auto& [offset, run] : begun->second.runs()) {
      skip_to(offset);
      crc = crc32_combine(crc, run.crc, run.bytes);
      done += run.bytes;
    }
  }
  skip_to(storages_[storage].bytes);
  return crc;
}

void SourceChecks::add(std::uint32_t storage, std::span<const ReadBytes> reads, std::vector<CrcRun>* summed) {
  if (reads.empty() || !source_.storages[storage].crc32) return;
  std::vector<CrcRun> runs;
  for (const ReadBytes& read : missing(storage, reads)) {
    const std::uint32_t crc = read.crc ? *read.crc : crc32(read.bytes);
    runs.push_back({read.offset_bytes, std::ssize(read.bytes), storage, crc});
  }
  add_runs(storage, runs);
  if (summed != nullptr) summed->insert(summed->end(), runs.begin(), runs.end());
}

/// The parts of the reads that have no checksum yet.
std::vector<ReadBytes> SourceChecks::missing(std::uint32_t storage, std::span<const ReadBytes> reads) const {
  std::vector<ReadBytes> parts;
  const std::scoped_lock lock(mutex_);
  if (skipped_.contains(storage)) return parts;
  parts.reserve(reads.size());
  const auto begun = begun_.find(storage);
  for (const ReadBytes& read : reads) {
    const std::int64_t begin = read.offset_bytes, end = begin + std::ssize(read.bytes);
    if (begun == begun_.end()) {
      if (!read.bytes.empty()) parts.push_back(read);
      continue;
    }
    for (const auto& [from, to] : begun->second.missing(begin, end)) {
      const bool is_whole = from == begin && to == end;
      parts.push_back(is_whole ? read : part_of(read, from, to));
    }
  }
  return parts;
}

std::vector<CrcRun> SourceChecks::incomplete() const {
  const std::scoped_lock lock(mutex_);
  std::vector<CrcRun> all;
  for (const auto& [storage, runs] : begun_) {
    for (const auto& [offset, run] : runs.runs()) all.push_back({offset, run.bytes, storage, run.crc});
  }
  return all;
}

void SourceChecks::add_all(std::span<const CrcRun> runs) {
  for (const CrcRun& run : runs) {
    if (!fits(run, source_.storages)) throw misfit(run);
    add_runs(run.storage, std::span(&run, 1));
  }
}

std::vector<SourceChecks::Rest> SourceChecks::small_rests() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Rest> rests;
  for (const auto& [storage, runs] : begun_) {
    const std::int64_t bytes = source_.storages[storage].bytes;
    Rest rest{storage, runs.missing(0, bytes)};
    std::int64_t missing = 0;
    for (const CrcRuns::Range& part : rest.parts) missing += part.end - part.begin;
    if (missing <= bytes / kReadParts) rests.push_back(std::move(rest));
  }
  return rests;
}

void SourceChecks::read_rest(const Reader& reader, const std::function<bool(const Storage&)>& is_own,
                             const std::stop_token& stop) {
  std::vector<std::byte> buffer(kRestBlock);
  for (const Rest& rest : small_rests()) {
    const Storage& storage = source_.storages[rest.storage];
    if (!is_own(storage)) continue;
    const std::shared_ptr<const RandomReader> bytes = reader.bytes_of(rest.storage);
    for (const CrcRuns::Range& part : rest.parts) {
      for (std::int64_t at = part.begin; at < part.end; at += std::ssize(buffer)) {
        check_stop(stop);
        const auto block = std::span(buffer).first(static_cast<std::size_t>(std::min(kRestBlock, part.end - at)));
        bytes->read_at(storage.offset + at, block);
        add(rest.storage, std::array{ReadBytes{at, block}});
      }
    }
  }
}

/// Adds a run. \returns the checksum of the run's storage if that is now complete.
std::optional<std::uint32_t> SourceChecks::add_locked(const CrcRun& run) {
  if (skipped_.contains(run.storage)) return std::nullopt;
  CrcRuns& runs = begun_[run.storage];
  // run_count_ excludes the storage while its runs change. If the storage is complete or skipped, its runs are freed
  // and not counted again.
  run_count_ -= runs.runs().size();
  runs.add(run.offset_bytes, run.bytes, run.crc);
  std::optional<std::uint32_t> found;
  if (runs.covers(source_.storages[run.storage].bytes)) found = runs.runs().begin()->second.crc;
  const bool is_too_much = !found && run_count_ + runs.runs().size() > kMostRuns;
  if (is_too_much) skipped_.insert(run.storage);
  if (!found && !is_too_much) run_count_ += runs.runs().size();
  if (found || is_too_much) begun_.erase(run.storage);
  return found;
}

/// Adds runs of one storage. The report is called outside of mutex_, so that other threads can continue to add runs.
void SourceChecks::add_runs(std::uint32_t storage_index, std::span<const CrcRun> runs) {
  const Storage& storage = source_.storages[storage_index];
  std::optional<std::uint32_t> found;
  {
    const std::scoped_lock lock(mutex_);
    for (const CrcRun& run : runs) {
      if (const auto complete = add_locked(run)) found = complete;
    }
  }
  if (!found || *found == *storage.crc32) return;
  const std::scoped_lock lock(reporting_);
  findings_.report(Error(ErrorCode::kCorruption, "the elements do not match the checksum that the file records")
                       .in_file(source_.files[storage.file].path)
                       .because("the file was changed or damaged after it was written")
                       .of_kind(FindingKind::kCrcMismatch)
                       .expected(fmt::format("CRC-32 {:08x}", *storage.crc32))
                       .found(fmt::format("{:08x}", *found))
                       .hint("download the file again, or restore it from a backup"));
}

}  // namespace shard
