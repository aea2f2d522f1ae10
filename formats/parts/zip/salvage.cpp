#include "formats/parts/zip/salvage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "formats/parts/zip/bytes.h"
#include "formats/parts/zip/directory.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::zip {

namespace {

using File = std::shared_ptr<const RandomReader>;

/// Checks the records of a zip with a readable directory. Each record may be damaged.
class Checker {
 public:
  Checker(const File& file, std::int64_t begin, const ZipReader& zip) : file_(file), begin_(begin), zip_(zip) {}

  void run(std::vector<Record>& whole, std::vector<LostRecord>& lost) {
    for (const Record& record : zip_.records()) check(record, lost);
    for (Record& record : agreed_) take(std::move(record), whole);
    for (Record& record : doubtful_) take(std::move(record), whole);
    std::ranges::sort(whole, {}, &Record::header_offset);
  }

 private:
  void check(Record record, std::vector<LostRecord>& lost) {
    try {
      record.data_offset = zip_.data_offset(record);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      return check_without_header(record, error, lost);
    }
    if (is_whole(record)) {
      agreed_.push_back(std::move(record));
    } else {
      const bool is_known = record.method == 0 || record.method == kDeflated;
      lost.push_back({record.name, begin_ + record.header_offset, FindingKind::kCrcMismatch,
                      is_known ? "its bytes do not match their checksum"
                               : fmt::format("it is compressed with method {}", record.method)});
    }
  }

  /// Checks a record without using its local header: its data end at the next record or the directory, possibly before
  /// a descriptor.
  void check_without_header(Record record, const Error& error, std::vector<LostRecord>& lost) {
    const std::int64_t room = record.limit - record.header_offset - kLocalBytes - record.stored_bytes;
    for (const std::int64_t descriptor : {16, 24, 0, 12, 20}) {
      if (!record.checksum() || record.bytes == 0 || descriptor > room) continue;
      record.data_offset = begin_ + record.limit - descriptor - record.stored_bytes;
      if (!is_whole(record)) continue;
      const std::string local = local_name(record);
      if (!local.empty() && local != record.name) {
        doubtful_.push_back(record);
        record.name = local;
      }
      doubtful_.push_back(std::move(record));
      return;
    }
    lost.push_back(
        {record.name, begin_ + record.header_offset, error.kind().value_or(FindingKind::kBadHeader), error.what()});
  }

  /// Checks the content against the CRC in the directory, or if that is the damaged part, in the descriptor.
  bool is_whole(const Record& record) const {
    if (!record.checksum()) return true;
    try {
      const std::uint32_t crc = content_crc(file_, record);
      return crc == record.crc32 || descriptor_crc(record) == crc;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      return false;  // The content cannot be read or decompressed.
    }
  }

  std::optional<std::uint32_t> descriptor_crc(const Record& record) const {
    const std::int64_t at = record.data_offset + record.stored_bytes;
    if ((record.flags & kDescriptorFlag) == 0 || at + 8 > begin_ + record.limit) return std::nullopt;
    std::array<std::byte, 8> bytes;
    file_->read_at(at, bytes);
    if (load<std::uint32_t>(bytes, 0) != kDescriptorSignature) return std::nullopt;
    return load<std::uint32_t>(bytes, 4);
  }

  std::string local_name(const Record& record) const {
    std::array<std::byte, static_cast<std::size_t>(kLocalBytes)> header;
    file_->read_at(begin_ + record.header_offset, header);
    const std::int64_t bytes = load<std::uint16_t>(header, 26);
    if (begin_ + record.header_offset + kLocalBytes + bytes > record.data_offset) return {};
    std::string name(static_cast<std::size_t>(bytes), '\0');
    file_->read_at(begin_ + record.header_offset + kLocalBytes, std::as_writable_bytes(std::span(name)));
    return name;
  }

  void take(Record record, std::vector<Record>& whole) {
    if (names_.insert(record.name)) whole.push_back(std::move(record));
  }

  const File& file_;
  std::int64_t begin_;
  const ZipReader& zip_;
  std::vector<Record> agreed_;    ///< Records whose directory entry and local header agree.
  std::vector<Record> doubtful_;  ///< Records with a correct CRC whose local header differs from the directory.
  HashSet<std::string> names_;
};

/// Drops all records that share a name, because they cannot be told apart.
void drop_doubled(std::vector<Record>& records, std::vector<LostRecord>& lost, std::int64_t begin) {
  HashMap<std::string, int> counts;
  for (const Record& record : records) ++counts.try_emplace(record.name, 0).value;
  std::erase_if(records, [&](const Record& record) {
    if (*counts.find(record.name) == 1) return false;
    lost.push_back({record.name, begin + record.header_offset, FindingKind::kDuplicateName,
                    "the zip has several records of that name"});
    return true;
  });
}

/// Whether something is missing between the first record and the first one of a storage.
bool has_hole_before_data(const std::vector<Record>& whole, const std::vector<LostRecord>& lost, std::int64_t begin) {
  const auto data =
      std::ranges::find_if(whole, [](const Record& record) { return record.name.find("/data/") != std::string::npos; });
  const std::int64_t until = data == whole.end() ? INT64_MAX : begin + data->header_offset;
  return std::ranges::any_of(lost, [&](const LostRecord& each) {
    return each.header_offset < until && each.name.find("/data/") == std::string::npos;
  });
}

/// Scans a file that contains one zip. Anything after the first zip's end may be inside one of its records.
SalvagedZip scanned(const File& file, std::int64_t begin, std::int64_t bytes, Arena& arena, const Error& why) {
  std::vector<FoundZip> zips = scan_zips(file, begin, bytes, arena);
  if (zips.empty() || zips.front().records.empty()) throw why;
  SalvagedZip salvaged;
  FoundZip& first = zips.front();
  const std::int64_t moved = first.begin - begin;
  for (Record& record : first.records) {
    record.header_offset += moved;
    record.limit += moved;
  }
  salvaged.lost = std::move(first.lost);
  drop_doubled(first.records, salvaged.lost, begin);
  if (moved > 0) {
    salvaged.lost.insert(salvaged.lost.begin(),
                         {"", begin, FindingKind::kBadHeader, fmt::format("its first {} bytes are damaged", moved)});
  }
  salvaged.has_order = !has_hole_before_data(first.records, salvaged.lost, begin);
  salvaged.why_scanned = why.what();
  salvaged.zip = std::make_unique<ZipReader>(file, begin, bytes, std::move(first.records));
  return salvaged;
}

}  // namespace

SalvagedZip salvage_zip(const File& file, std::int64_t begin, std::int64_t bytes, Arena& arena) {
  std::unique_ptr<ZipReader> zip;
  try {
    zip = std::make_unique<ZipReader>(file, begin, bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorruption && error.code() != ErrorCode::kUnsupported) throw;
    return scanned(file, begin, bytes, arena, error);
  }
  SalvagedZip salvaged;
  std::vector<Record> whole;
  Checker(file, begin, *zip).run(whole, salvaged.lost);
  salvaged.zip = std::make_unique<ZipReader>(file, begin, bytes, std::move(whole));
  return salvaged;
}

}  // namespace shard::zip
