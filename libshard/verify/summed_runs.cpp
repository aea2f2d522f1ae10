#include "libshard/verify/summed_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard {

void SummedRuns::set(std::uint32_t file, std::vector<SummedRun> runs) {
  std::ranges::sort(runs, {}, &SummedRun::offset);
  by_file_[file] = std::move(runs);
}

void SummedRuns::add(std::uint32_t file, std::size_t index, std::int64_t offset, std::int64_t bytes,
                     std::uint32_t crc) {
  const SummedRun& run = by_file_[file][index];
  if (bytes == run.bytes) return compare(file, run, crc);
  std::uint32_t found = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto begun = begun_.try_emplace({file, index}).first;
    begun->second.add(offset, bytes, crc);
    if (!begun->second.covers(run.bytes)) return;
    found = begun->second.runs().begin()->second.crc;
    begun_.erase(begun);
  }
  compare(file, run, found);
}

void SummedRuns::compare(std::uint32_t file, const SummedRun& run, std::uint32_t found) {
  ++compared_;
  if (found == run.crc32) return;
  findings_.report(Error(ErrorCode::kCorruption, fmt::format("{} does not match its checksum", run.name))
                       .in_file(catalog_.files[file].path)
                       .of_tensor(tensor_in(file, run))
                       .because("bytes of the file changed after it was written")
                       .of_kind(FindingKind::kCrcMismatch)
                       .expected(fmt::format("CRC-32 {:08x}", run.crc32))
                       .found(fmt::format("{:08x}", found))
                       .hint("fetch the file again, or restore it from a copy"));
}

/// The first tensor by name that has elements in the run; empty where none has.
std::string SummedRuns::tensor_in(std::uint32_t file, const SummedRun& run) const {
  for (const Tensor& tensor : catalog_.tensors) {
    for (const Chunk& chunk : catalog_.chunks_of(tensor)) {
      const Storage& storage = catalog_.storage_of(chunk);
      const bool lies_there = storage.file == file && storage.offset >= run.offset && storage.offset < run.end();
      if (storage.plain && lies_there) return std::string(tensor.name);
    }
  }
  return {};
}

void SummedRuns::gather(Group& group) {
  if (group.size() == 1) return;
  WireWriter own;
  if (group.rank() > 0) {
    own.number(compared_);
    for (const auto& [place, runs] : begun_) {
      for (const auto& [offset, run] : runs.runs()) {
        for (const std::int64_t number : {std::int64_t{place.first}, static_cast<std::int64_t>(place.second), offset,
                                          run.bytes, std::int64_t{run.crc}}) {
          own.number(number);
        }
      }
    }
  }
  for (const Bytes& piece : shard::gather(group, own.take(), 0)) {
    if (piece.empty()) continue;
    WireReader from(piece);
    compared_ += from.number();
    while (!from.at_end()) {
      const std::int64_t file = from.number_below(std::ssize(by_file_));
      const std::int64_t run = from.number_below(std::ssize(by_file_[static_cast<std::size_t>(file)]));
      const std::int64_t offset = from.number(), bytes = from.number(), crc = from.number();
      add(static_cast<std::uint32_t>(file), static_cast<std::size_t>(run), offset, bytes,
          static_cast<std::uint32_t>(crc));
    }
  }
}

}  // namespace shard
