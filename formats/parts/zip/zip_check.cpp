#include "formats/parts/zip/zip_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/parts/zip/bytes.h"
#include "formats/parts/zip/directory.h"
#include "libshard/core/error.h"

namespace shard::zip {
namespace {

constexpr std::uint16_t kPadding = 0x4246;  // The id "FB" of torch's padding field.
constexpr std::byte kFill{'Z'};
constexpr std::uint32_t kTorchZip64Versions = 0x002D031E;  // The versions "made by" and "needed", as miniz writes them.

/// Reads a little more than requested, and keeps what was read last: small records are close together, and their local
/// headers are looked up between those of the directory. Threads: one.
class ReadAhead final : public RandomReader {
 public:
  explicit ReadAhead(std::shared_ptr<const RandomReader> file) : file_(std::move(file)), windows_(kKept) {
    name_ = file_->name();
  }
  /// Local headers that are read from now on, by offset in the file. A disk with long round trips is asked for several
  /// of them at one time.
  void expect(std::vector<std::int64_t> headers) {
    if (file_->requests_at_once() < 2) return;
    headers_ = std::move(headers);
    windows_.resize(kKept + static_cast<std::size_t>(file_->requests_at_once()));
  }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    if (count > kWindow - kAlignment) return file_->read_at(offset, out);
    const auto found = std::ranges::find_if(
        windows_, [&](const Window& window) { return offset >= window.begin && offset + count <= window.end(); });
    if (found == windows_.end()) {
      read_windows(offset);
    } else {
      std::rotate(windows_.begin(), found, found + 1);
    }
    const Window& window = windows_.front();
    if (offset + count > window.end()) throw file_too_short(name_, file_->size(), offset + count);
    std::copy_n(window.bytes.data() + (offset - window.begin), out.size(), out.data());
  }
  std::int64_t size() const override { return file_->size(); }
  std::int64_t allocated_bytes(std::int64_t offset, std::int64_t count) const override {
    return file_->allocated_bytes(offset, count);
  }

 private:
  static constexpr std::int64_t kWindow = 16 << 10, kAlignment = 4096;
  static constexpr std::int64_t kDescriptor = 24;   ///< The bytes before a header that are read with it.
  static constexpr std::int64_t kHeader = 1 << 10;  ///< The bytes of a header; names are rarely longer.
  static constexpr std::size_t kKept = 4;           ///< Windows without those of expected headers.

  struct Window {
    std::int64_t begin = 0;
    std::vector<std::byte> bytes;

    std::int64_t end() const { return begin + std::ssize(bytes); }
  };

  Window window_at(std::int64_t offset) const {
    const std::int64_t begin = offset / kAlignment * kAlignment;
    return {begin, std::vector<std::byte>(
                       static_cast<std::size_t>(std::clamp<std::int64_t>(file_->size() - begin, 0, kWindow)))};
  }

  /// Reads the window at `offset` and those of the headers that are expected next.
  void read_windows(std::int64_t offset) const {
    std::vector<Window> read{window_at(offset)};
    auto next = std::ranges::upper_bound(headers_, offset);
    for (; next != headers_.end() && read.size() + kKept < windows_.size(); ++next) {
      if (*next + kHeader > read.back().end()) read.push_back(window_at(*next - kDescriptor));
    }
    std::vector<RangedRead> ranges;
    for (Window& window : read) ranges.push_back({window.begin, window.bytes});
    try {
      file_->read_many(ranges);
    } catch (const Error&) {  // Perhaps of a header that is not needed yet.
      read.resize(1);
      file_->read_at(read.front().begin, read.front().bytes);
    }
    for (std::size_t i = read.size(); i-- > 0;) {
      windows_.back() = std::move(read[i]);
      std::ranges::rotate(windows_, windows_.end() - 1);
    }
  }

  std::shared_ptr<const RandomReader> file_;
  std::vector<std::int64_t> headers_;
  mutable std::vector<Window> windows_;  ///< The last one used is first.
};

/// Fields that only the directory contains and no reader needs.
struct Attributes {
  std::uint16_t made_by = 0, needed = 0, time = 0, date = 0, comment_bytes = 0, internal = 0;
  std::uint32_t external = 0;
  bool has_other_extra = false;  ///< True for fields other than zip64's.

  bool is_of_torch() const {
    return made_by == 0 && time == 0 && date == 0 && comment_bytes == 0 && internal == 0 && external == 0 &&
           (needed == 0 || needed == 20 || needed == 45) && !has_other_extra;
  }
};

/// Whether `extra` consists only of fields with these ids; calls `each(id, content)`.
template <class Each>
bool walk_extra(std::span<const std::byte> extra, const Each& each) {
  while (extra.size() >= 4) {
    const std::size_t bytes = load<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return false;
    each(load<std::uint16_t>(extra, 0), extra.subspan(4, bytes));
    extra = extra.subspan(4 + bytes);
  }
  return extra.empty();
}

Attributes attributes_of(std::span<const std::byte> entry) {
  const std::size_t name = load<std::uint16_t>(entry, 28), extra = load<std::uint16_t>(entry, 30);
  Attributes found{.made_by = load<std::uint16_t>(entry, 4),
                   .needed = load<std::uint16_t>(entry, 6),
                   .time = load<std::uint16_t>(entry, 12),
                   .date = load<std::uint16_t>(entry, 14),
                   .comment_bytes = load<std::uint16_t>(entry, 32),
                   .internal = load<std::uint16_t>(entry, 36),
                   .external = load<std::uint32_t>(entry, 38)};
  const bool is_whole = walk_extra(entry.subspan(kDirectoryBytes + name, extra), [&](std::uint16_t id, const auto&) {
    found.has_other_extra = found.has_other_extra || id != kZip64Extra;
  });
  found.has_other_extra = found.has_other_extra || !is_whole;
  return found;
}

class ZipCheck {
 public:
  ZipCheck(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes, Findings& findings)
      : file_(std::make_shared<ReadAhead>(file)), begin_(begin), bytes_(bytes), findings_(findings) {}

  void run(const EachRecord& each) {
    try {
      zip_.emplace(file_, begin_, bytes_);
      file_->expect(local_headers());
      read_attributes();
    } catch (const Error& error) {
      return findings_.report(error);
    }
    check_end();
    check_attributes();
    for (std::size_t i = 0; i < attributes_.size(); ++i) check_record(i, each);
    warn_of_missing_sums();
  }

 private:
  Error wrong(const std::string& message) const {
    return Error(damaged(FindingKind::kBadHeader, message).in_file(file_->name()));
  }

  /// By offset in the file.
  std::vector<std::int64_t> local_headers() const {
    std::vector<std::int64_t> offsets;
    for (const Record& record : zip_->records()) offsets.push_back(begin_ + record.header_offset);
    std::ranges::sort(offsets);
    return offsets;
  }

  std::vector<std::byte> read(std::int64_t offset, std::int64_t bytes) const {
    std::vector<std::byte> content(static_cast<std::size_t>(bytes));
    file_->read_at(begin_ + offset, content);
    return content;
  }

  /// Reads the attributes of the entries, which ZipReader has validated.
  void read_attributes() {
    std::int64_t at = zip_->directory_offset();
    for (std::size_t i = 0; i < zip_->records().size(); ++i) {
      const std::vector<std::byte> fixed = read(at, kDirectoryBytes);
      const std::int64_t bytes = kDirectoryBytes + load<std::uint16_t>(fixed, 28) + load<std::uint16_t>(fixed, 30) +
                                 load<std::uint16_t>(fixed, 32);
      attributes_.push_back(attributes_of(read(at, bytes)));
      at += bytes;
    }
    const auto like_torch = std::ranges::count_if(attributes_, &Attributes::is_of_torch);
    is_of_torch_ = 2 * static_cast<std::size_t>(like_torch) > attributes_.size();
  }

  void check_attributes() {
    for (std::size_t i = 0; is_of_torch_ && i < attributes_.size(); ++i) {
      if (attributes_[i].is_of_torch()) continue;
      findings_.report(
          wrong(fmt::format("record '{}': the directory's entry has a version, time or attribute that is not 0",
                            zip_->records()[i].name))
              .because("the other entries have none, as torch writes them"));
    }
  }

  void check_end() {
    const std::int64_t at = zip_->directory_offset() + zip_->directory_bytes();
    const std::vector<std::byte> tail = read(at, bytes_ - at);
    const bool is_wide = load<std::uint32_t>(tail, 0) == kZip64EndSignature;
    const std::size_t end = is_wide ? kZip64EndBytes + kLocatorBytes : 0;
    if (is_wide && is_of_torch_ && load<std::uint32_t>(tail, 12) != kTorchZip64Versions) {
      findings_.report(wrong("the zip64 end record's versions are not those that torch writes"));
    }
    const auto entries = static_cast<std::int64_t>(zip_->records().size());
    const bool agrees =
        load<std::uint16_t>(tail, end + 10) == std::min<std::int64_t>(entries, 0xFFFF) &&
        load<std::uint32_t>(tail, end + 12) == std::min<std::int64_t>(zip_->directory_bytes(), kMax32) &&
        load<std::uint32_t>(tail, end + 16) == std::min<std::int64_t>(zip_->directory_offset(), kMax32);
    if (is_of_torch_ && !agrees) findings_.report(wrong("the end record contradicts the zip64 end record"));
    const std::uint16_t comment = load<std::uint16_t>(tail, end + 20);
    if (comment == 0) return;
    const Error error = wrong(fmt::format("a comment of {} bytes follows the end record", comment));
    is_of_torch_ ? findings_.report(error) : findings_.warn(error);
  }

  void check_record(std::size_t index, const EachRecord& each) {
    const Record& record = zip_->records()[index];
    try {
      const std::int64_t data = zip_->data_offset(record);
      check_local(record, attributes_[index], data - begin_);
      check_descriptor(record, data - begin_ + record.stored_bytes);
      each(*zip_, record, data);
    } catch (Error& error) {
      if (error.code() == ErrorCode::kUnsupported) error.of_kind(FindingKind::kBadHeader);
      findings_.report(error.in_file(file_->name()));
    }
  }

  /// Compares the fields of a local header that data_offset does not compare.
  void check_local(const Record& record, const Attributes& stated, std::int64_t data) {
    const std::vector<std::byte> header = read(record.header_offset, data - record.header_offset);
    const auto differs = [&](std::string_view what) {
      return wrong(fmt::format("record '{}': the local header's {} is not the directory's", record.name, what));
    };
    if (is_of_torch_ && load<std::uint16_t>(header, 4) != stated.needed) throw differs("version");
    if (load<std::uint16_t>(header, 10) != stated.time) throw differs("time");
    if (load<std::uint16_t>(header, 12) != stated.date) throw differs("date");
    if (is_of_torch_)
      check_extra(record, std::span(header).subspan(static_cast<std::size_t>(kLocalBytes) + record.name.size()));
  }

  void check_extra(const Record& record, std::span<const std::byte> extra) const {
    const auto is_stated = [&](std::int64_t number) {
      return number == 0 || number == record.bytes || number == record.stored_bytes || number == record.header_offset;
    };
    bool fits = true;
    const bool is_whole = walk_extra(extra, [&](std::uint16_t id, std::span<const std::byte> content) {
      if (id == kPadding) {
        fits = fits && std::ranges::all_of(content, [](std::byte each) { return each == kFill; });
        return;
      }
      fits = fits && id == kZip64Extra && content.size() % 8 == 0;
      for (std::size_t at = 0; fits && at < content.size(); at += 8) fits = is_stated(load<std::int64_t>(content, at));
    });
    if (fits && is_whole) return;
    throw wrong(fmt::format("record '{}': the padding before its data is not what torch writes", record.name));
  }

  void check_descriptor(const Record& record, std::int64_t at) const {
    const std::int64_t gap = record.limit - at;
    if (gap == 0) return;
    const std::vector<std::byte> bytes = read(at, gap);
    std::span<const std::byte> rest(bytes);
    bool agrees = true;
    if (gap == 16 || gap == 24) {
      agrees = load<std::uint32_t>(rest, 0) == kDescriptorSignature;
      rest = rest.subspan(4);
    }
    const bool is_wide = rest.size() == 20;
    const auto number = [&](std::size_t index) {
      return is_wide ? load<std::uint64_t>(rest, 4 + 8 * index) : load<std::uint32_t>(rest, 4 + 4 * index);
    };
    agrees = agrees && load<std::uint32_t>(rest, 0) == record.crc32 &&
             number(0) == static_cast<std::uint64_t>(record.stored_bytes) &&
             number(1) == static_cast<std::uint64_t>(record.bytes);
    if (agrees) return;
    throw wrong(fmt::format("record '{}': the descriptor after its data does not match the directory", record.name));
  }

  void warn_of_missing_sums() {
    const auto has_none = [](const Record& record) { return !record.checksum(); };
    const auto without = std::ranges::count_if(zip_->records(), has_none);
    if (without == 0) return;
    findings_.warn(wrong(fmt::format("{} of {} records have no checksum", without, zip_->records().size()))
                       .because("their writer omitted it, so their content cannot be checked"));
  }

  const std::shared_ptr<ReadAhead> file_;
  const std::int64_t begin_, bytes_;
  Findings& findings_;
  std::optional<ZipReader> zip_;
  std::vector<Attributes> attributes_;  ///< By record.
  bool is_of_torch_ = false;
};

}  // namespace

void check_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
               Findings& findings, const EachRecord& each) {
  ZipCheck(file, begin, bytes, findings).run(each);
}

}  // namespace shard::zip
