#include "formats/parts/zip/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/zip/bytes.h"
#include "formats/parts/zip/directory.h"
#include "libshard/core/bytes.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::zip {

namespace {

constexpr std::int64_t kScanWindow = 1 << 20;
constexpr std::int64_t kLookAhead = 24;  // The longest descriptor.
// The largest number of bytes that all candidates of ends may read for their CRCs, as a multiple of the bytes scanned.
constexpr std::int64_t kMostChecked = 4;

/// The largest number of bytes of names and extra fields that are read, as a multiple of the bytes scanned. False
/// headers may overlap, so they could otherwise cost much more.
constexpr std::int64_t kMostOfHeaders = 8;

/// Short runs of a file's bytes, from a window in memory that follows the requests.
class Window {
 public:
  Window(const RandomReader& file, std::int64_t end) : file_(file), end_(end) {}

  /// Valid until the next call. \pre the bytes are before `end`
  std::span<const std::byte> at(std::int64_t offset, std::int64_t bytes) {
    if (offset < begin_ || offset + bytes > begin_ + std::ssize(bytes_)) {
      bytes_.resize(static_cast<std::size_t>(std::min(std::max(bytes, kScanWindow), end_ - offset)));
      begin_ = offset;
      file_.read_at(offset, bytes_);
    }
    return std::span<const std::byte>(bytes_).subspan(static_cast<std::size_t>(offset - begin_),
                                                      static_cast<std::size_t>(bytes));
  }

 private:
  const RandomReader& file_;
  std::int64_t end_, begin_ = 0;
  std::vector<std::byte> bytes_;
};

/// An offset at which a part of a zip may start.
struct Mark {
  std::int64_t at;
  std::uint32_t signature;
};

/// One of two possible readings of a descriptor at `at`, whose record's data start at `data`.
struct Claim {
  std::int64_t data, at, bytes, stored;
  std::uint32_t crc;
  std::int64_t length;  ///< The descriptor's length.
};

struct LocalHeader {
  Record record;
  bool is_deferred = false;  ///< The sizes are in the descriptor.
};

/// The end of a record: the offset of the next structure.
struct RecordEnd {
  std::int64_t next = 0;
  bool is_whole = false;
};

class Scanner {
 public:
  Scanner(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes, Arena& arena)
      : file_(file),
        begin_(begin),
        end_(begin + bytes),
        arena_(arena),
        window_(*file, end_),
        checks_left_(kMostChecked * bytes + kScanWindow),
        headers_left_(kMostOfHeaders * bytes + kScanWindow) {}

  std::vector<FoundZip> run() {
    find_marks();
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      const Mark& mark = marks_[i];
      if (mark.at < next_) continue;
      if (mark.signature == kLocalSignature) take_record(mark.at);
      if (mark.signature == kDirectorySignature) is_in_directory_ = is_open_;
      if (mark.signature == kEndSignature && is_open_) close(mark.at);
    }
    if (is_open_) finish(end_, false);
    return std::move(zips_);
  }

 private:
  // --- Signatures ---

  /// Finds all signatures. Windows overlap by the longest descriptor, so none is divided.
  void find_marks() {
    std::vector<std::byte> window;
    for (std::int64_t at = begin_; at < end_; at += kScanWindow) {
      const std::int64_t here = std::min(kScanWindow, end_ - at);
      window.resize(static_cast<std::size_t>(std::min(here + kLookAhead, end_ - at)));
      file_->read_at(at, window);
      find_in(window, static_cast<std::size_t>(here), at);
    }
    std::ranges::sort(claims_, {}, [](const Claim& claim) { return std::pair(claim.data, claim.at); });
  }

  /// \param count  only signatures that start before this position are taken.
  void find_in(std::span<const std::byte> window, std::size_t count, std::int64_t window_at) {
    for (std::size_t i = 0; i < count; ++i) {
      const void* const found = std::memchr(window.data() + i, 'P', count - i);
      if (found == nullptr) return;
      i = static_cast<std::size_t>(static_cast<const std::byte*>(found) - window.data());
      if (window.size() - i < 4) return;
      const auto signature = load<std::uint32_t>(window, i);
      if (signature == kDescriptorSignature) add_claims(window.subspan(i), window_at + static_cast<std::int64_t>(i));
      if (signature == kLocalSignature || signature == kDirectorySignature || signature == kEndSignature) {
        arena_.charge(Charge::kBytes, sizeof(Mark));
        marks_.push_back({window_at + static_cast<std::int64_t>(i), signature});
      }
    }
  }

  /// Descriptor: signature (4 bytes), CRC-32 (4), compressed size and size, either 4 + 4 or 8 + 8. Both readings are
  /// kept, because only the CRC of the data shows which one applies.
  void add_claims(std::span<const std::byte> descriptor, std::int64_t at) {
    if (descriptor.size() < 16) return;
    const auto crc = load<std::uint32_t>(descriptor, 4);
    add_claim({0, at, load<std::uint32_t>(descriptor, 12), load<std::uint32_t>(descriptor, 8), crc, 16});
    if (descriptor.size() < 24) return;
    const auto stored = load<std::uint64_t>(descriptor, 8), bytes = load<std::uint64_t>(descriptor, 16);
    if (std::max(stored, bytes) > static_cast<std::uint64_t>(INT64_MAX)) return;
    add_claim({0, at, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(stored), crc, 24});
  }

  void add_claim(Claim claim) {
    if (claim.stored > claim.at - begin_) return;
    claim.data = claim.at - claim.stored;
    arena_.charge(Charge::kBytes, sizeof(Claim));
    claims_.push_back(claim);
  }

  /// Whether a signature, or the end of the range, is at `at`.
  bool is_mark(std::int64_t at) const {
    const auto found = std::ranges::lower_bound(marks_, at, {}, &Mark::at);
    return at == end_ || (found != marks_.end() && found->at == at);
  }

  // --- Records ---

  void take_record(std::int64_t at) {
    const std::optional<LocalHeader> header = read_header(at);
    if (!header) {
      if (end_ - at >= kLocalBytes) return;  // The four bytes match the signature by chance.
      open(at);
      lose({}, at, FindingKind::kTruncated, "it ends inside the header of a record");
      return;
    }
    if (begins_next_zip(header->record.name)) finish(at, false);
    open(at);
    const RecordEnd end = header->is_deferred ? find_end(*header) : stated_end(*header);
    next_ = end.next;
    if (!end.is_whole && end.next == 0) skip_unknown(*header);
  }

  std::optional<LocalHeader> read_header(std::int64_t at) {
    if (end_ - at < kLocalBytes) return std::nullopt;
    const std::span<const std::byte> fixed = window_.at(at, kLocalBytes);
    const std::int64_t name_bytes = load<std::uint16_t>(fixed, 26), extra_bytes = load<std::uint16_t>(fixed, 28);
    LocalHeader header;
    Record& record = header.record;
    record.header_offset = at;
    record.data_offset = at + kLocalBytes + name_bytes + extra_bytes;
    record.flags = load<std::uint16_t>(fixed, 6);
    const bool may_be = record.data_offset <= end_ && are_known_flags(record.flags);
    if (!may_be || name_bytes + extra_bytes > headers_left_) return std::nullopt;
    headers_left_ -= name_bytes + extra_bytes;
    const std::span<const std::byte> bytes = window_.at(at, record.data_offset - at);
    const std::string_view name =
        as_text(bytes.subspan(static_cast<std::size_t>(kLocalBytes), static_cast<std::size_t>(name_bytes)));
    if (!is_safe_name(name)) return std::nullopt;
    Zip64 wide(bytes.subspan(static_cast<std::size_t>(kLocalBytes + name_bytes)));
    const std::optional<std::int64_t> all = wide.find(load<std::uint32_t>(bytes, 22));
    const std::optional<std::int64_t> stored = wide.find(load<std::uint32_t>(bytes, 18));
    if (!all || !stored) return std::nullopt;
    record.name = name;
    record.method = load<std::uint16_t>(bytes, 8);
    record.crc32 = load<std::uint32_t>(bytes, 14);
    record.bytes = *all;
    record.stored_bytes = *stored;
    header.is_deferred = (record.flags & kDescriptorFlag) != 0 && record.stored_bytes == 0;
    return header;
  }

  /// The end of a record whose header records its size.
  RecordEnd stated_end(const LocalHeader& header) {
    Record record = header.record;
    if (record.stored_bytes > end_ - record.data_offset) {
      lose_cut(record, record.stored_bytes);
      return {end_, false};
    }
    std::int64_t next = record.data_offset + record.stored_bytes;
    if ((record.flags & kDescriptorFlag) != 0) {
      const Claim* const claim = claim_at(record.data_offset, next);
      if (claim != nullptr) {
        next += claim->length;
        if (record.crc32 == 0) record.crc32 = claim->crc;
      }
    }
    if (keep_if_whole(record)) return {next, true};
    if (!is_mark(next)) return {0, false};  // The recorded size may be damaged.
    lose(record.name, record.header_offset, FindingKind::kCrcMismatch, "its bytes do not match their checksum");
    return {next, false};
  }

  const Claim* claim_at(std::int64_t data, std::int64_t at) const {
    const auto found = std::ranges::lower_bound(claims_, std::pair(data, at), {},
                                                [](const Claim& claim) { return std::pair(claim.data, claim.at); });
    return found != claims_.end() && found->data == data && found->at == at ? &*found : nullptr;
  }

  /// The end of a record whose size is in its descriptor: the first descriptor whose CRC matches the bytes before it.
  RecordEnd find_end(const LocalHeader& header) {
    const std::int64_t data = header.record.data_offset;
    auto claim = std::ranges::lower_bound(claims_, data, {}, &Claim::data);
    std::int64_t damaged_end = 0;
    for (; claim != claims_.end() && claim->data == data; ++claim) {
      const std::int64_t next = claim->at + claim->length;
      const bool is_followed = is_mark(next);
      Record record = header.record;
      record.crc32 = claim->crc;
      record.bytes = claim->bytes;
      record.stored_bytes = claim->stored;
      const bool is_checked = record.checksum().has_value();
      if ((is_checked || is_followed) && keep_if_whole(record)) return {next, true};
      if (is_followed && damaged_end == 0) damaged_end = next;
    }
    if (damaged_end > 0) {
      lose(header.record.name, header.record.header_offset, FindingKind::kCrcMismatch,
           "its bytes do not match their checksum");
    }
    return {damaged_end, false};
  }

  bool keep_if_whole(Record record) {
    const bool is_sound = record.method != 0 || record.bytes == record.stored_bytes;
    if (!is_sound || record.stored_bytes > checks_left_) return false;
    checks_left_ -= record.stored_bytes;
    if (record.method != 0) arena_.charge(Charge::kDecoded, record.bytes);
    try {
      if (record.checksum() && content_crc(file_, record) != record.crc32) return false;
    } catch (const Error& error) {
      if (!is_about_content(error)) throw;
      return false;
    }
    arena_.charge(Charge::kBytes, static_cast<std::int64_t>(sizeof(Record) + record.name.size()));
    record.header_offset -= zips_.back().begin;
    record.limit = record.data_offset + record.stored_bytes - zips_.back().begin;
    zips_.back().records.push_back(std::move(record));
    return true;
  }

  void lose_cut(const Record& record, std::int64_t bytes) {
    lose(record.name, record.header_offset, FindingKind::kTruncated,
         fmt::format("the file ends {} bytes into its {}", end_ - record.data_offset, bytes));
  }

  void lose(std::string name, std::int64_t at, FindingKind kind, std::string why) {
    arena_.charge(Charge::kBytes, static_cast<std::int64_t>(sizeof(LostRecord) + name.size()));
    zips_.back().lost.push_back({std::move(name), at, kind, std::move(why)});
  }

  /// Continues after a record whose end is unknown: at its damaged descriptor if that still has the size, otherwise
  /// after the end of the zip.
  void skip_unknown(const LocalHeader& header) {
    const Record& record = header.record;
    const std::int64_t data = record.data_offset;
    auto mark = std::ranges::lower_bound(marks_, data, {}, &Mark::at);
    for (; mark != marks_.end(); ++mark) {
      if (states_size(mark->at, data)) {
        lose(record.name, record.header_offset, FindingKind::kBadHeader, "the descriptor after its bytes is damaged");
        next_ = mark->at;
        return;
      }
      if (mark->signature == kEndSignature && is_mark(mark->at + end_bytes(mark->at))) break;
    }
    if (mark == marks_.end()) {
      lose(record.name, record.header_offset, FindingKind::kTruncated, "the file ends inside it");
    } else {
      lose(record.name, record.header_offset, FindingKind::kBadHeader, "its end is unknown");
    }
    next_ = mark == marks_.end() ? end_ : mark->at;
  }

  /// Whether the 16 bytes before `at` are a descriptor, perhaps damaged, of data that start at `data`.
  bool states_size(std::int64_t at, std::int64_t data) {
    if (at - data < 16) return false;
    const std::span<const std::byte> bytes = window_.at(at - 16, 16);
    const std::int64_t stored = load<std::uint32_t>(bytes, 8), all = load<std::uint32_t>(bytes, 12);
    return stored == at - 16 - data || all == at - 16 - data;
  }

  // --- Zips ---

  /// Whether the end record of the open zip is missing: a record follows its directory, or has the first one's name.
  bool begins_next_zip(const std::string& name) const {
    if (!is_open_) return false;
    const FoundZip& zip = zips_.back();
    return is_in_directory_ || (!zip.records.empty() && zip.records.front().name == name) ||
           (!zip.lost.empty() && zip.lost.front().name == name);
  }

  void open(std::int64_t at) {
    if (is_open_) return;
    is_open_ = true;
    is_in_directory_ = false;
    zips_.emplace_back().begin = at;
  }

  std::int64_t end_bytes(std::int64_t at) {
    if (end_ - at < kEndBytes) return end_ - at;
    return std::min(end_ - at, kEndBytes + load<std::uint16_t>(window_.at(at, kEndBytes), 20));
  }

  void close(std::int64_t at) { finish(at + end_bytes(at), true); }

  void finish(std::int64_t end, bool has_end) {
    FoundZip& zip = zips_.back();
    zip.end = end;
    zip.is_whole = has_end && zip.lost.empty();
    next_ = end;
    is_open_ = false;
  }

  const std::shared_ptr<const RandomReader>& file_;
  std::int64_t begin_, end_;
  Arena& arena_;
  Window window_;
  std::int64_t checks_left_, headers_left_;
  std::vector<Mark> marks_;    ///< By offset.
  std::vector<Claim> claims_;  ///< By data offset, then by descriptor offset.
  std::vector<FoundZip> zips_;
  bool is_open_ = false;          ///< The last one of `zips_` is not complete yet.
  bool is_in_directory_ = false;  ///< The scan is inside its directory.
  std::int64_t next_ = 0;         ///< All bytes before this offset are assigned.
};

}  // namespace

std::vector<FoundZip> scan_zips(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
                                Arena& arena) {
  return Scanner(file, begin, bytes, arena).run();
}

std::uint32_t content_crc(const std::shared_ptr<const RandomReader>& file, const Record& record) {
  std::shared_ptr<const RandomReader> content = file;
  std::int64_t at = record.data_offset;
  if (record.method == kDeflated) {
    content = decoded_view::decompressed({.file = file,
                                          .offset = at,
                                          .stored_bytes = record.stored_bytes,
                                          .bytes = record.bytes,
                                          .codec = decoded_view::Codec::kDeflate,
                                          .shown = record.name});
    at = 0;
  } else if (record.method != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("zip: record '{}' has compression method {}", record.name, record.method))
        .of_kind(FindingKind::kBadHeader);
  }
  constexpr std::int64_t kBlock = 64 << 10;  // Larger buffers would touch fresh pages for each of many small records.
  std::vector<std::byte> buffer;
  std::uint32_t crc = 0;
  for (std::int64_t done = 0; done < record.bytes;) {
    buffer.resize(static_cast<std::size_t>(std::min(kBlock, record.bytes - done)));
    content->read_at(at + done, buffer);
    crc = crc32(buffer, crc);
    done += std::ssize(buffer);
  }
  return crc;
}

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
      if (!is_about_content(error)) throw;
      return check_without_header(record, error, lost);
    }
    if (const std::optional<std::uint32_t> crc = proven_crc(record)) {
      record.crc32 = *crc;
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
      const std::optional<std::uint32_t> crc = proven_crc(record);
      if (!crc) continue;
      record.crc32 = *crc;
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
  /// \returns the content's CRC, or nothing if it matches neither. Without checksums, the one in the record.
  std::optional<std::uint32_t> proven_crc(const Record& record) const {
    if (!record.checksum()) return record.crc32;
    try {
      const std::uint32_t crc = content_crc(file_, record);
      if (crc == record.crc32 || descriptor_crc(record) == crc) return crc;
    } catch (const Error& error) {
      if (!is_about_content(error)) throw;  // Otherwise the content cannot be read or decompressed.
    }
    return std::nullopt;
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

/// Drops all records that share a name, because the right one is unknown.
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
