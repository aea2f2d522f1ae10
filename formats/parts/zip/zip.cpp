#include "formats/parts/zip/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <numeric>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/zip/bytes.h"
#include "formats/parts/zip/directory.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard::zip {

namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kPadHeaderBytes = 4;

// The size of the zip64 extra field (id 1). It contains sizes and the offset only if they exceed 32 bits.
std::int64_t zip64_bytes(std::int64_t bytes, std::int64_t header) {
  const bool wide_size = bytes >= kMax32, wide_offset = header >= kMax32;
  return wide_size || wide_offset ? 4 + (wide_size ? 16 : 0) + (wide_offset ? 8 : 0) : 0;
}

// Extra field 1: id (2 bytes), length of the rest (2), size (8), compressed size (8), offset of the local header (8).
void store_zip64(std::string& out, std::int64_t bytes, std::int64_t compressed, std::int64_t header) {
  const std::int64_t all = zip64_bytes(bytes, header);
  if (all == 0) return;
  store(out, kZip64Extra);
  store(out, static_cast<std::uint16_t>(all - 4));
  if (bytes >= kMax32) {
    store(out, bytes);
    store(out, compressed);
  }
  if (header >= kMax32) store(out, header);
}

std::uint32_t narrow(std::int64_t number) { return number >= kMax32 ? kMax32 : static_cast<std::uint32_t>(number); }

std::uint16_t flags_of(std::int64_t bytes) {
  return static_cast<std::uint16_t>(kUtf8Flag | (bytes > 0 ? kDescriptorFlag : 0));
}

// The size of a descriptor. Empty records have none. Records with a zip64 field have the wide form, even if only the
// offset exceeds 32 bits.
std::int64_t descriptor_bytes(std::int64_t bytes, std::int64_t header) {
  if (bytes == 0) return 0;
  return zip64_bytes(bytes, header) > 0 ? 24 : 16;
}

// Descriptor: signature (4 bytes), CRC-32 (4), compressed size and size (4 each, 8 each in the wide form).
void store_descriptor(std::string& out, std::int64_t bytes, std::int64_t header, std::uint32_t crc) {
  const std::int64_t all = descriptor_bytes(bytes, header);
  if (all == 0) return;
  store(out, kDescriptorSignature);
  store(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (all == 24) {
      store(out, bytes);
    } else {
      store(out, static_cast<std::uint32_t>(bytes));
    }
  }
}

// The end of a zip, three records in a row:
//   zip64 end    signature (4), bytes after this field (8), versions (2 + 2), disks (4 + 4), entries here and in all
//                (8 + 8), size and offset of the directory (8 + 8)
//   locator      signature (4), disk (4), offset of the zip64 end record (8), number of disks (4)
//   end          signature (4), disks (2 + 2), entries here and in all (2 + 2), size and offset of the directory (4 +
//   4),
//                length of the comment (2); a number that does not fit is all ones
void store_end(std::string& out, std::int64_t entries, std::int64_t directory, std::int64_t directory_bytes) {
  store(out, kZip64EndSignature);
  store(out, kZip64EndBytes - 12);
  store(out, std::uint16_t{0x031E});  // Made by: Unix, version 3.0, as miniz writes it.
  store(out, std::uint16_t{0x002D});  // Needed: version 4.5, the first with zip64.
  store(out, std::uint64_t{0});       // Both disk numbers.
  store(out, entries);
  store(out, entries);
  store(out, directory_bytes);
  store(out, directory);
  store(out, kLocatorSignature);
  store(out, std::uint32_t{0});
  store(out, directory + directory_bytes);
  store(out, std::uint32_t{1});
  const std::uint16_t count = entries > 0xFFFF ? 0xFFFF : static_cast<std::uint16_t>(entries);
  store(out, kEndSignature);
  store(out, std::uint32_t{0});
  store(out, count);
  store(out, count);
  store(out, narrow(directory_bytes));
  store(out, narrow(directory));
  store(out, std::uint16_t{0});
}

constexpr std::int64_t kReadWhole = 8192;  // Zips up to this size are read in one call.
// The number of bytes read from the front and from the end of a larger zip.
constexpr std::int64_t kWindow = 4096;
constexpr std::int64_t kUsualExtra = 128;  // Read together with a local header; torch's padding is shorter.
// The number of bytes of a directory that are read at once, regardless of its recorded size.
constexpr std::int64_t kDirectoryWindow = 1 << 20;
constexpr std::size_t kLongestEntry = kDirectoryBytes + 3 * 0xFFFF;

/// Inflates a record. Memory grows with the actual output, not with the size recorded in the directory.
std::vector<std::byte> inflated(const decoded_view::Compressed& from) {
  constexpr std::int64_t kStep = 1 << 20;
  const auto view = decoded_view::decompressed(from);
  std::vector<std::byte> content;
  for (std::int64_t at = 0; at < from.bytes; at += kStep) {
    content.resize(static_cast<std::size_t>(std::min(from.bytes, at + kStep)));
    view->read_at(at, std::span(content).subspan(static_cast<std::size_t>(at)));
  }
  return content;
}

/// The name in a local header, as far as `header` contains it.
std::string_view local_name(std::span<const std::byte> header) {
  return as_text(header.subspan(kLocalBytes)).substr(0, load<std::uint16_t>(header, 26));
}

/// Checks that the disk contains all records.
void check_counts(std::uint64_t here, std::uint64_t all, std::string_view where) {
  if (here == all) return;
  throw damaged(FindingKind::kBadHeader, fmt::format("the {} counts {} records and {} in all", where, here, all))
      .expected(std::to_string(all))
      .found(std::to_string(here));
}

}  // namespace

ZipReader::ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes)
    : file_(std::move(file)), begin_(begin), bytes_(bytes) {
  try {
    if (begin < 0 || bytes < 0 || checked_add(begin, bytes) > file_->size()) {
      throw damaged(FindingKind::kTruncated, fmt::format("bytes [{}, {}) are outside the file", begin, begin + bytes))
          .found(file_->size());
    }
    tail_.begin = bytes <= kReadWhole ? 0 : bytes - kWindow;
    tail_.bytes.resize(static_cast<std::size_t>(bytes - tail_.begin));
    file_->read_at(begin + tail_.begin, tail_.bytes);
    end_ = read_end();
    if (tail_.begin > 0) {
      head_.bytes.resize(static_cast<std::size_t>(kWindow));
      file_->read_at(begin, head_.bytes);
    }
    read_directory(end_);
    check_places(end_.directory);
    index_names();
  } catch (Error& error) {
    throw error.in_file(file_->name());
  }
}

ZipReader::ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes,
                     std::vector<Record> records)
    : file_(std::move(file)), begin_(begin), bytes_(bytes), records_(std::move(records)) {
  has_checksums_ = std::ranges::any_of(records_, [](const Record& record) { return record.crc32 != 0; });
  take_folder();
  index_names();
}

std::span<const std::byte> ZipReader::view(std::int64_t offset, std::int64_t count,
                                           std::vector<std::byte>& scratch) const {
  if (offset < 0 || count < 0 || offset > bytes_ || count > bytes_ - offset) {
    throw damaged(FindingKind::kOutOfBounds,
                  fmt::format("{} bytes at {} extend past the end of the zip of {} bytes", count, offset, bytes_))
        .in_file(file_->name());
  }
  for (const Window* window : {&head_, &tail_}) {
    const std::int64_t size = static_cast<std::int64_t>(window->bytes.size());
    if (offset >= window->begin && offset - window->begin + count <= size) {
      return std::span(window->bytes)
          .subspan(static_cast<std::size_t>(offset - window->begin), static_cast<std::size_t>(count));
    }
  }
  scratch.resize(static_cast<std::size_t>(count));
  file_->read_at(begin_ + offset, scratch);
  return scratch;
}

std::int64_t ZipReader::find_end() const {
  if (bytes_ < kEndBytes) throw damaged(FindingKind::kTruncated, fmt::format("{} bytes are too few for a zip", bytes_));
  std::vector<std::byte> scratch;
  const auto is_end = [](std::span<const std::byte> bytes) {
    return load<std::uint32_t>(bytes, 0) == kEndSignature &&
           kEndBytes + load<std::uint16_t>(bytes, 20) == static_cast<std::int64_t>(bytes.size());
  };
  // The usual case: no comment, so the record is at the very end. Otherwise search backwards, because a comment of up
  // to 65,535 bytes may follow it.
  if (is_end(view(bytes_ - kEndBytes, kEndBytes, scratch))) return bytes_ - kEndBytes;
  const std::int64_t begin = std::max<std::int64_t>(0, bytes_ - kEndBytes - 0xFFFF);
  const std::span<const std::byte> tail = view(begin, bytes_ - begin, scratch);
  for (std::int64_t at = bytes_ - begin - kEndBytes; at-- > 0;) {
    if (is_end(tail.subspan(static_cast<std::size_t>(at)))) return begin + at;
  }
  Error error = damaged(FindingKind::kTruncated, "the end record is missing");
  if (load<std::uint32_t>(view(0, 4, scratch), 0) != kLocalSignature) {
    throw error.because("it does not start like a zip either, so it is not a zip file");
  }
  throw error.because("the file was truncated, or bytes were appended to it").hint("fetch it again");
}

/// Throws for an archive of several disks. The last part of a split archive starts inside a record. An archive that
/// starts with a local header is complete, so its disk numbers are damaged.
void ZipReader::throw_disks(std::string_view where) const {
  std::vector<std::byte> scratch;
  if (load<std::uint32_t>(view(0, 4, scratch), 0) != kLocalSignature) {
    throw Error(ErrorCode::kUnsupported, "zip: it spans several disks").of_kind(FindingKind::kBadHeader);
  }
  throw damaged(FindingKind::kBadHeader, fmt::format("the {} counts several disks, and this is a zip of one", where));
}

ZipReader::End ZipReader::read_end() const {
  std::vector<std::byte> scratch;
  const std::int64_t at = find_end();
  const std::span<const std::byte> record = view(at, kEndBytes, scratch);
  const std::uint16_t disk = load<std::uint16_t>(record, 4), directory_disk = load<std::uint16_t>(record, 6);
  if (disk != 0 || directory_disk != 0) throw_disks("end record");
  check_counts(load<std::uint16_t>(record, 8), load<std::uint16_t>(record, 10), "end record");
  End end{load<std::uint16_t>(record, 10), load<std::uint32_t>(record, 16), load<std::uint32_t>(record, 12)};
  std::int64_t directory_end = at;
  const std::int64_t locator = at - kLocatorBytes;
  if (locator >= kZip64EndBytes && load<std::uint32_t>(view(locator, 4, scratch), 0) == kLocatorSignature) {
    end = read_zip64_end(locator, end);
    directory_end = locator - kZip64EndBytes;
  }
  if (end.directory > directory_end || directory_end - end.directory != end.directory_bytes) {
    throw damaged(FindingKind::kBadHeader, "the directory does not end at the end record")
        .expected(directory_end)
        .found(fmt::format("{} + {}", end.directory, end.directory_bytes));
  }
  if (end.entries > end.directory_bytes / kDirectoryBytes) {
    throw damaged(FindingKind::kBadHeader,
                  fmt::format("{} records cannot be in a directory of {} bytes", end.entries, end.directory_bytes));
  }
  return end;
}

ZipReader::End ZipReader::read_zip64_end(std::int64_t locator, const End& classic) const {
  std::vector<std::byte> scratch;
  const std::span<const std::byte> at = view(locator, kLocatorBytes, scratch);
  const std::uint64_t record_offset = load<std::uint64_t>(at, 8);
  if (load<std::uint32_t>(at, 4) != 0 || load<std::uint32_t>(at, 16) != 1) throw_disks("zip64 locator");
  if (record_offset != static_cast<std::uint64_t>(locator - kZip64EndBytes)) {
    throw damaged(FindingKind::kBadHeader, "the zip64 locator does not point at the record before it")
        .expected(locator - kZip64EndBytes)
        .found(std::to_string(record_offset));
  }
  const std::span<const std::byte> record = view(locator - kZip64EndBytes, kZip64EndBytes, scratch);
  if (load<std::uint32_t>(record, 0) != kZip64EndSignature ||
      load<std::uint64_t>(record, 4) != static_cast<std::uint64_t>(kZip64EndBytes) - 12) {
    throw damaged(FindingKind::kBadHeader, "the zip64 end record has no signature or a different size");
  }
  // The number of this disk, and that of the directory's disk.
  if (load<std::uint64_t>(record, 16) != 0) throw_disks("zip64 end record");
  check_counts(load<std::uint64_t>(record, 24), load<std::uint64_t>(record, 32), "zip64 end record");
  const End end{to_size(load<std::uint64_t>(record, 32), "record count"),
                to_size(load<std::uint64_t>(record, 48), "directory offset"),
                to_size(load<std::uint64_t>(record, 40), "directory size")};
  const auto agree = [](std::int64_t narrow, std::int64_t wide, std::int64_t limit) {
    return narrow == wide || narrow == limit;
  };
  if (!agree(classic.entries, end.entries, 0xFFFF) || !agree(classic.directory, end.directory, kMax32) ||
      !agree(classic.directory_bytes, end.directory_bytes, kMax32)) {
    throw damaged(FindingKind::kBadHeader, "the zip64 end record contradicts the end record");
  }
  return end;
}

void ZipReader::read_directory(const End& end) {
  std::vector<std::byte> scratch;
  std::span<const std::byte> rest;
  const std::int64_t directory_end = end.directory + end.directory_bytes;
  std::int64_t next = end.directory;  // The offset after the bytes in `rest`.
  for (std::int64_t i = 0; i < end.entries; ++i) {
    if (rest.size() < kLongestEntry && next < directory_end) {
      next -= static_cast<std::int64_t>(rest.size());
      rest = view(next, std::min(kDirectoryWindow, directory_end - next), scratch);
      next += static_cast<std::int64_t>(rest.size());
    }
    records_.push_back(take_entry(rest));
    has_checksums_ = has_checksums_ || records_.back().crc32 != 0;
  }
  const std::int64_t left = directory_end - next + static_cast<std::int64_t>(rest.size());
  if (left != 0) {
    throw damaged(FindingKind::kBadHeader,
                  fmt::format("{} bytes follow the directory's {} entries", left, end.entries));
  }
  take_folder();
}

void ZipReader::take_folder() {
  if (records_.empty()) return;
  const std::string& first = records_.front().name;
  if (const std::size_t slash = first.find('/'); slash != first.npos) folder_ = first.substr(0, slash);
}

void ZipReader::check_places(std::int64_t directory) {
  std::vector<std::uint32_t> order(records_.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return records_[a].header_offset < records_[b].header_offset;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  const std::int64_t front = order.empty() ? directory : records_[order.front()].header_offset;
  if (front != 0)
    throw damaged(FindingKind::kBadHeader, fmt::format("{} bytes precede the first record", front)).expected(0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Record& record = records_[order[i]];
    const bool last = i + 1 == order.size();
    record.limit = last ? directory : records_[order[i + 1]].header_offset;
    const std::int64_t least = kLocalBytes + static_cast<std::int64_t>(record.name.size());
    if (checked_add(record.stored_bytes, least) > record.limit - record.header_offset) {
      throw damaged(last ? FindingKind::kOutOfBounds : FindingKind::kOverlap,
                    fmt::format("record '{}' of {} bytes at {} reaches past {}", record.name, record.stored_bytes,
                                record.header_offset, last ? "the directory" : "the next record"))
          .expected(fmt::format("an end up to {}", record.limit));
    }
  }
}

void ZipReader::index_names() {
  by_name_.reserve(records_.size());
  for (std::size_t i = 0; i < records_.size(); ++i) {
    by_name_.push_back({std::hash<std::string_view>{}(records_[i].name), static_cast<std::uint32_t>(i)});
  }
  std::sort(by_name_.begin(), by_name_.end(), [&](const NameKey& a, const NameKey& b) {
    return a.hash != b.hash ? a.hash < b.hash : records_[a.record].name < records_[b.record].name;
  });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    const NameKey &a = by_name_[i - 1], &b = by_name_[i];
    if (a.hash == b.hash && records_[a.record].name == records_[b.record].name) {
      throw damaged(FindingKind::kDuplicateName, fmt::format("two records are named '{}'", records_[a.record].name));
    }
  }
}

const Record* ZipReader::find(std::string_view name) const {
  std::string full = folder_;
  full.append("/").append(name);
  const std::uint64_t hash = std::hash<std::string_view>{}(full);
  const auto found = std::partition_point(by_name_.begin(), by_name_.end(), [&](const NameKey& key) {
    return key.hash != hash ? key.hash < hash : records_[key.record].name < full;
  });
  if (found == by_name_.end() || found->hash != hash || records_[found->record].name != full) return nullptr;
  return &records_[found->record];
}

/// Checks that only the descriptor follows the data. Damaged lengths in a local header would shift the data's start,
/// and only this check detects that.
void ZipReader::check_gap(const Record& record, std::int64_t gap, bool has_extra) const {
  bool fits = gap == 0;
  if ((record.flags & kDescriptorFlag) != 0) {
    const bool is_wide = record.bytes >= kMax32 || record.stored_bytes >= kMax32;
    // Beyond 4 GiB torch writes the wide form, others write the narrow one.
    const bool is_beyond_4gib = record.header_offset >= kMax32;
    fits = (gap == 16 && !is_wide) || (gap == 24 && (is_wide || is_beyond_4gib));
    fits = fits || (!has_extra && (gap == 12 || gap == 20));  // Some other writers omit the signature.
  }
  if (fits) return;
  throw damaged(FindingKind::kBadHeader,
                fmt::format("record '{}': {} bytes follow its data that belong to no record", record.name, gap))
      .in_file(file_->name())
      .because("the lengths in its local header were changed");
}

/// The bytes of a local header that are read at first.
std::int64_t ZipReader::local_bytes(const Record& record) const {
  const std::int64_t usual = kLocalBytes + std::ssize(record.name) + kUsualExtra;
  return std::min(usual, record.limit - record.header_offset);
}

std::int64_t ZipReader::data_offset(const Record& record) const {
  if (record.data_offset >= 0) return record.data_offset;
  std::vector<std::byte> scratch;
  return checked_offset(record, view(record.header_offset, local_bytes(record), scratch));
}

std::vector<std::int64_t> ZipReader::data_offsets(std::span<const std::uint32_t> records) const {
  constexpr std::size_t kTogether = 1024;
  std::vector<std::int64_t> offsets;
  std::vector<std::vector<std::byte>> headers(std::min(kTogether, records.size()));
  for (std::size_t begin = 0; begin < records.size(); begin += kTogether) {
    const auto some = records.subspan(begin, std::min(kTogether, records.size() - begin));
    std::vector<RangedRead> reads;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Record& record = records_[some[i]];
      headers[i].clear();
      const bool is_near = record.header_offset + local_bytes(record) <= std::ssize(head_.bytes);
      if (record.data_offset >= 0 || is_near) continue;
      headers[i].resize(static_cast<std::size_t>(local_bytes(record)));
      reads.push_back({begin_ + record.header_offset, headers[i]});
    }
    file_->read_many(reads);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Record& record = records_[some[i]];
      offsets.push_back(headers[i].empty() ? data_offset(record) : checked_offset(record, headers[i]));
    }
  }
  return offsets;
}

/// The offset of a record's data by its local header, which is checked.
std::int64_t ZipReader::checked_offset(const Record& record, std::span<const std::byte> header) const {
  const std::int64_t name_bytes = static_cast<std::int64_t>(record.name.size());
  const auto wrong = [&](std::string_view what) {
    return damaged(FindingKind::kBadHeader,
                   fmt::format("record '{}': the local header's {} is not the directory's", record.name, what))
        .in_file(file_->name());
  };
  // Local header: signature (4 bytes), version (2), flags (2), method (2), time and date (4), CRC-32 (4), compressed
  // size (4), size (4), lengths of name and extra fields (2 + 2), name, extra fields. The data follow.
  if (load<std::uint32_t>(header, 0) != kLocalSignature) throw wrong("signature");
  if (load<std::uint16_t>(header, 6) != record.flags) throw wrong("flags");
  if (load<std::uint16_t>(header, 8) != record.method) throw wrong("method");
  const std::string_view name = local_name(header);
  if (name != record.name) throw wrong("name").expected(record.name).found(name);
  const std::uint32_t crc = load<std::uint32_t>(header, 14), stored = load<std::uint32_t>(header, 18),
                      bytes = load<std::uint32_t>(header, 22);
  const std::int64_t extra_offset = record.header_offset + kLocalBytes + name_bytes;
  const std::int64_t extra_bytes = load<std::uint16_t>(header, 28);
  // With a descriptor, the local sizes and CRC are zeros, and the values of the descriptor count.
  const bool deferred = (record.flags & kDescriptorFlag) != 0 && crc == 0 && stored == 0 && bytes == 0;
  if (!deferred) {
    if (crc != record.crc32) throw wrong("CRC");
    std::vector<std::byte> extra;
    Zip64 wide(bytes == kMax32 || stored == kMax32 ? view(extra_offset, extra_bytes, extra)
                                                   : std::span<const std::byte>());
    if (wide.value(bytes, "size") != record.bytes) throw wrong("size");
    if (wide.value(stored, "compressed size") != record.stored_bytes) throw wrong("compressed size");
  }
  const std::int64_t data = extra_offset + extra_bytes;
  if (record.stored_bytes > record.limit - data) {
    throw damaged(FindingKind::kOverlap, fmt::format("record '{}' of {} bytes at {} reaches past {}", record.name,
                                                     record.stored_bytes, data, record.limit))
        .in_file(file_->name());
  }
  check_gap(record, record.limit - data - record.stored_bytes, extra_bytes > 0);
  return begin_ + data;
}

std::int64_t ZipReader::allocated_bytes(const Record& record) const {
  return file_->allocated_bytes(begin_ + record.header_offset, record.limit - record.header_offset);
}

std::vector<std::byte> ZipReader::read(const Record& record, Arena& arena) const {
  try {
    arena.charge(record.method == 0 ? Charge::kBytes : Charge::kInflated, record.bytes);
  } catch (Error& error) {
    throw error.in_file(file_->name());
  }
  return read(record, record.bytes);
}

std::vector<std::byte> ZipReader::read(const Record& record, std::int64_t limit_bytes) const {
  if (record.bytes > limit_bytes) {
    throw damaged(FindingKind::kBadHeader, fmt::format("record '{}' has {} bytes; at most {} are reasonable",
                                                       record.name, record.bytes, limit_bytes))
        .in_file(file_->name());
  }
  const std::int64_t data = data_offset(record);
  std::vector<std::byte> content;
  if (record.method == 0) {
    const std::span<const std::byte> stored = view(data - begin_, record.stored_bytes, content);
    if (stored.data() != content.data()) content.assign(stored.begin(), stored.end());
  } else if (record.method == kDeflated) {
    content = inflated({file_, data, record.stored_bytes, record.bytes, decoded_view::Codec::kDeflate, record.name});
  } else {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("zip: record '{}' has compression method {}", record.name, record.method))
        .of_kind(FindingKind::kBadHeader)
        .in_file(file_->name());
  }
  const std::optional<std::uint32_t> sum = record.checksum();
  if (sum && crc32(content) != *sum) {
    throw damaged(FindingKind::kCrcMismatch, fmt::format("record '{}' does not match its checksum", record.name))
        .in_file(file_->name())
        .expected(fmt::format("{:08x}", *sum))
        .found(fmt::format("{:08x}", crc32(content)))
        .because("its bytes were changed after it was written");
  }
  return content;
}

ZipLayout::ZipLayout(std::string folder) : folder_(std::move(folder) + '/') {}

std::int64_t ZipLayout::add(std::string_view name, std::int64_t bytes) {
  Entry entry;
  entry.name = name;
  entry.bytes = bytes;
  entry.header = end_;
  const auto name_bytes = static_cast<std::int64_t>(folder_.size() + name.size());
  const std::int64_t wide = zip64_bytes(bytes, entry.header);
  const std::int64_t start = checked_add(entry.header, kLocalBytes + name_bytes + wide + kPadHeaderBytes);
  entry.data = checked_add(start, (kAlignment - start % kAlignment) % kAlignment);
  end_ = checked_add(checked_add(entry.data, bytes), descriptor_bytes(bytes, entry.header));
  directory_bytes_ = checked_add(directory_bytes_, kDirectoryBytes + name_bytes + wide);
  entries_.push_back(std::move(entry));
  return entries_.back().data;
}

std::int64_t ZipLayout::total_bytes() const {
  return checked_add(checked_add(end_, directory_bytes_), kZip64EndBytes + kLocatorBytes + kEndBytes);
}

void ZipLayout::append_header(std::size_t record, std::string& out) const {
  const auto& [name, header, data, bytes] = entries_[record];
  const std::size_t name_bytes = folder_.size() + name.size();
  const std::int64_t extra = data - header - kLocalBytes - static_cast<std::int64_t>(name_bytes);
  const std::int64_t padding = extra - zip64_bytes(bytes, header) - kPadHeaderBytes;
  store(out, kLocalSignature);
  store(out, std::uint16_t{0});  // Version needed.
  store(out, flags_of(bytes));
  out.append(2 + 4 + 4 + 4 + 4, '\0');  // Method, time, date; CRC and sizes, which are in the descriptor.
  store(out, static_cast<std::uint16_t>(name_bytes));
  store(out, static_cast<std::uint16_t>(extra));
  out.append(folder_).append(name);
  store_zip64(out, bytes, 0, header);  // torch does not know the compressed size yet when it writes this field.
  out += "FB";
  store(out, static_cast<std::uint16_t>(padding));
  out.append(static_cast<std::size_t>(padding), 'Z');
}

void ZipLayout::append_descriptor(std::size_t record, std::uint32_t crc, std::string& out) const {
  store_descriptor(out, entries_[record].bytes, entries_[record].header, crc);
}

void ZipLayout::append_entry(std::size_t record, std::uint32_t crc, std::string& out) const {
  const auto& [name, header, data, bytes] = entries_[record];
  store(out, kDirectorySignature);
  store(out, std::uint32_t{0});  // Version made by, version needed.
  store(out, flags_of(bytes));
  out.append(2 + 4, '\0');  // Method, time and date.
  store(out, crc);
  store(out, narrow(bytes));
  store(out, narrow(bytes));
  store(out, static_cast<std::uint16_t>(folder_.size() + name.size()));
  store(out, static_cast<std::uint16_t>(zip64_bytes(bytes, header)));
  out.append(2 + 2 + 2 + 4, '\0');  // Comment, disk, attributes.
  store(out, narrow(header));
  out.append(folder_).append(name);
  store_zip64(out, bytes, bytes, header);
}

void ZipLayout::append_end(std::string& out) const {
  store_end(out, static_cast<std::int64_t>(entries_.size()), end_, directory_bytes_);
}

std::vector<ZipLayout::Span> ZipLayout::frame(const std::vector<std::uint32_t>& crcs) const {
  assert(crcs.size() == entries_.size());
  std::vector<Span> spans;
  spans.reserve(entries_.size() + 1);
  Span span{0, {}};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    append_header(i, span.content);
    spans.push_back(std::move(span));
    span = {entries_[i].data + entries_[i].bytes, {}};
    append_descriptor(i, crcs[i], span.content);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) append_entry(i, crcs[i], span.content);
  append_end(span.content);
  spans.push_back(std::move(span));
  return spans;
}

}  // namespace shard::zip
