#include "libshard/exec/source_checks.h"

#include <fmt/format.h>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard {

void SourceChecks::add(std::uint32_t storage, std::int64_t offset_bytes, std::span<const std::byte> bytes) {
  if (bytes.empty() || !source_.storages[storage].crc32) return;
  add_run({offset_bytes, static_cast<std::int64_t>(bytes.size()), storage, crc32(bytes)});
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
    CrcRuns& runs = begun_[run.storage];
    runs.add(run.offset_bytes, run.bytes, run.crc);
    if (!runs.covers(storage.bytes)) return;
    found = runs.runs().begin()->second.crc;
    begun_.erase(run.storage);
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
