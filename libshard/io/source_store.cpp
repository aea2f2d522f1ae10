#include "libshard/io/source_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace shard {

void RandomReader::stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const {
  constexpr std::int64_t kBlock = 1 << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, kBlock)));
  for (std::int64_t done = 0; done < bytes; done += kBlock) {
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min(bytes - done, kBlock)));
    read_at(offset_bytes + done, part);
    take(part);
  }
}

Error file_too_short(const std::string& name, std::int64_t have, std::int64_t need) {
  return Error(ErrorCode::kCorruption,
               fmt::format("the file ends at byte {}, but bytes up to {} are needed", have, need))
      .in_file(name)
      .expected(need)
      .found(have)
      .of_kind(FindingKind::kTruncated);
}

Error file_changed(std::string_view name) {
  return Error(ErrorCode::kCorruption, "cannot use the data: the file changed while it was being read")
      .in_file(name)
      .hint("run again when nothing is writing to the source");
}

std::vector<std::byte> read_metadata(const RandomReader& file, std::int64_t offset_bytes, std::int64_t count,
                                     Arena& arena) {
  try {
    arena.earn(file.allocated_bytes(offset_bytes, count));
    arena.charge(Charge::kBytes, count);
  } catch (Error& error) {
    throw error.in_file(file.name());
  }
  std::vector<std::byte> content(static_cast<std::size_t>(count));
  file.read_at(offset_bytes, content);
  return content;
}

void check_file_size(const RandomReader& file, std::int64_t limit_bytes) {
  if (file.size() <= limit_bytes) return;
  throw Error(ErrorCode::kCorruption,
              fmt::format("the file has {} bytes, but at most {} are supported", file.size(), limit_bytes))
      .in_file(file.name())
      .expected(fmt::format("at most {}", limit_bytes))
      .found(file.size());
}

std::vector<std::byte> read_whole(const RandomReader& file, std::int64_t limit_bytes) {
  check_file_size(file, limit_bytes);
  std::vector<std::byte> content(static_cast<std::size_t>(file.size()));
  file.read_at(0, content);
  return content;
}

}  // namespace shard
