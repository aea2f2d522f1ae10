#include "formats/parts/zip/directory.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/zip/bytes.h"
#include "libshard/core/bytes.h"

namespace shard::zip {
namespace {

// Deflate options (bits 1 and 2), descriptor, UTF-8. Any other flag changes how the bytes must be read.
constexpr std::uint16_t kKnownFlags = 0x0006 | kDescriptorFlag | kUtf8Flag;
constexpr std::uint16_t kEncryptionFlags = 0x0001 | 0x0040 | 0x2000;
constexpr std::int64_t kDeflateRatio = 1032;  // The best ratio that deflate can reach.

// The content of zip64's extra field, or an empty span. Sets `leaves_header` if a field before it is too long.
std::span<const std::byte> zip64_extra(std::span<const std::byte> extra, bool& leaves_header) {
  // Extra fields in a row, each: id (2 bytes), length of the content (2), content.
  while (extra.size() >= 4) {
    const std::size_t bytes = load<std::uint16_t>(extra, 2);
    leaves_header = bytes > extra.size() - 4;
    if (leaves_header) return {};
    if (load<std::uint16_t>(extra, 0) == kZip64Extra) return extra.subspan(4, bytes);
    extra = extra.subspan(4 + bytes);
  }
  return {};
}

// The reason why a record's name may lead outside its folder; empty if it cannot.
std::string_view fault_of_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.front() == '/') return "is absolute";
  if (name.find('\\') != name.npos) return "contains a backslash";
  if (name.find('\0') != name.npos) return "contains a NUL byte";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return "contains '..'";
    begin = end + 1;
  }
  return {};
}

}  // namespace

Error damaged(FindingKind kind, const std::string& message) {
  return Error(ErrorCode::kCorruption, "zip: " + message).of_kind(kind);
}

void check_name(std::string_view name) {
  if (name.empty()) throw damaged(FindingKind::kBadHeader, "a record has no name");
  if (name.find('\0') != name.npos) throw damaged(FindingKind::kBadHeader, "a record name contains a NUL byte");
  const std::string_view fault = fault_of_name(name);
  if (fault.empty()) return;
  throw damaged(FindingKind::kBadHeader, fmt::format("record name '{}' {}", name, fault))
      .because("names must not lead elsewhere");
}

bool is_safe_name(std::string_view name) { return fault_of_name(name).empty(); }

void check_flags(std::uint16_t flags, std::string_view name) {
  if ((flags & kEncryptionFlags) != 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("zip: record '{}' is encrypted", name))
        .of_kind(FindingKind::kBadHeader);
  }
  if (!are_known_flags(flags)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("zip: record '{}' has unknown flags {:#06x}", name, flags))
        .of_kind(FindingKind::kBadHeader);
  }
}

bool are_known_flags(std::uint16_t flags) { return (flags & ~kKnownFlags) == 0; }

std::int64_t to_size(std::uint64_t number, std::string_view field) {
  if (number > static_cast<std::uint64_t>(INT64_MAX)) {
    throw damaged(FindingKind::kBadHeader, fmt::format("{} {} does not fit 63 bits", field, number));
  }
  return static_cast<std::int64_t>(number);
}

std::int64_t Zip64::value(std::uint32_t field, std::string_view what) {
  if (field != kMax32) return field;
  const std::optional<std::uint64_t> number = take();
  if (leaves_header_) throw damaged(FindingKind::kBadHeader, "an extra field is longer than its header");
  if (!number) throw damaged(FindingKind::kBadHeader, fmt::format("the zip64 field lacks the {}", what));
  return to_size(*number, what);
}

std::optional<std::int64_t> Zip64::find(std::uint32_t field) {
  if (field != kMax32) return field;
  const std::optional<std::uint64_t> number = take();
  if (!number || *number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<std::uint64_t> Zip64::take() {
  if (!found_) rest_ = zip64_extra(extra_, leaves_header_);
  found_ = true;
  if (rest_.size() < 8) return std::nullopt;
  const std::uint64_t number = load<std::uint64_t>(rest_, 0);
  rest_ = rest_.subspan(8);
  return number;
}

// Offsets in an entry: 0 signature, 4 versions, 8 flags, 10 method, 12 time and date, 16 CRC-32, 20 compressed size,
// 24 size, 28 name length, 30 extra length, 32 comment length, 34 disk, 36 attributes, 42 offset of the local header,
// 46 name, extra fields, comment. A zip64 field has the numbers that are all ones here, in the order size, compressed
// size, offset.
Record take_entry(std::span<const std::byte>& rest) {
  if (rest.size() < kDirectoryBytes) throw damaged(FindingKind::kBadHeader, "the directory ends inside an entry");
  if (load<std::uint32_t>(rest, 0) != kDirectorySignature) {
    throw damaged(FindingKind::kBadHeader, "a directory entry has no signature");
  }
  const std::size_t name_bytes = load<std::uint16_t>(rest, 28), extra_bytes = load<std::uint16_t>(rest, 30),
                    comment_bytes = load<std::uint16_t>(rest, 32);
  const std::size_t fixed = kDirectoryBytes, all = fixed + name_bytes + extra_bytes + comment_bytes;
  if (all > rest.size()) throw damaged(FindingKind::kBadHeader, "the directory ends inside an entry");
  Record record;
  record.name = as_text(rest.subspan(fixed, name_bytes));
  check_name(record.name);
  record.flags = load<std::uint16_t>(rest, 8);
  check_flags(record.flags, record.name);
  record.method = load<std::uint16_t>(rest, 10);
  record.crc32 = load<std::uint32_t>(rest, 16);
  Zip64 wide(rest.subspan(fixed + name_bytes, extra_bytes));
  record.bytes = wide.value(load<std::uint32_t>(rest, 24), "size");
  record.stored_bytes = wide.value(load<std::uint32_t>(rest, 20), "compressed size");
  record.header_offset = wide.value(load<std::uint32_t>(rest, 42), "header offset");
  if (load<std::uint16_t>(rest, 34) != 0) {
    throw damaged(FindingKind::kBadHeader, fmt::format("record '{}' is on a different disk from the zip", record.name));
  }
  if (record.method == 0 && record.bytes != record.stored_bytes) {
    throw damaged(FindingKind::kBadHeader, fmt::format("record '{}' is stored with two sizes", record.name))
        .expected(record.bytes)
        .found(record.stored_bytes);
  }
  if (record.method == kDeflated && record.bytes / kDeflateRatio > record.stored_bytes) {
    throw damaged(FindingKind::kBadHeader, fmt::format("record '{}' of {} compressed bytes cannot decompress to {}",
                                                       record.name, record.stored_bytes, record.bytes))
        .because("deflate makes data at most 1032 times smaller");
  }
  rest = rest.subspan(all);
  return record;
}

}  // namespace shard::zip
