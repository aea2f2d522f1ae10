#include "libshard/exec/source_checks.h"

#include <fmt/format.h>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard {

void SourceChecks::add(std::uint32_t storage, std::int64_t offset_bytes, std::span<const std::byte> bytes,
                       std::vector<CrcRun>* summed) {
  if (bytes.empty() || !source_.storages[storage].crc32) return;
  const std::int64_t end = offset_bytes + static_cast<std::int64_t>(bytes.size());
  for (const auto& [from, to] : missing(storage, offset_bytes, end)) {
    const auto part = bytes.subspan(static_cast<std::size_t>(from - offset_bytes), static_cast<std::size_t>(to - from));
    const CrcRun run{from, to - from, storage, crc32(part)};
    add_run(run);
    if (summed != nullptr) summed->push_back(run);
  }
}

/// What of [begin, end) is yet to be summed.
std::vector<CrcRuns::Range> SourceChecks::missing(std::uint32_t storage, std::int64_t begin, std::int64_t end) const {
  if (end - begin == source_.storages[storage].bytes) return {{begin, end}};
  const std::scoped_lock lock(mutex_);
  if (skipped_.contains(storage)) return {};
  const auto begun = begun_.find(storage);
  if (begun == begun_.end()) return {{begin, end}};
  return begun->second.missing(begin, end);
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
    if (!fits(run, source_.storages)) throw Error(ErrorCode::kPeer, "another rank's checksums do not fit the source");
    add_run(run);
  }
}

void SourceChecks::add_run(const CrcRun& run) {
  const Storage& storage = source_.storages[run.storage];
  std::uint32_t found = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (skipped_.contains(run.storage)) return;
    CrcRuns& runs = begun_[run.storage];
    run_count_ -= runs.runs().size();
    runs.add(run.offset_bytes, run.bytes, run.crc);
    const bool is_complete = runs.covers(storage.bytes);
    if (is_complete) found = runs.runs().begin()->second.crc;
    const bool is_too_much = !is_complete && run_count_ + runs.runs().size() > kMostRuns;
    if (is_too_much) skipped_.insert(run.storage);
    if (is_complete || is_too_much) begun_.erase(run.storage);
    if (!is_complete && !is_too_much) run_count_ += runs.runs().size();
    if (!is_complete) return;
  }
  if (found == *storage.crc32) return;
  const std::scoped_lock lock(reporting_);
  findings_.report(Error(ErrorCode::kCorruption, "its elements do not match the checksum that is stored beside them")
                       .in_file(source_.files[storage.file].path)
                       .because("bytes of the file changed after it was written")
                       .of_kind(FindingKind::kCrcMismatch)
                       .expected(fmt::format("CRC-32 {:08x}", *storage.crc32))
                       .found(fmt::format("{:08x}", found))
                       .hint("fetch the file again, or restore it from a copy"));
}

}  // namespace shard
