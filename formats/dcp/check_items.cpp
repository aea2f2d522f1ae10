#include "formats/dcp/check_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "formats/dcp/item.h"
#include "formats/dcp/item_bytes.h"
#include "formats/dcp/objects.h"
#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/check_saved.h"
#include "libshard/core/digest.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

namespace {

class ItemFileCheck {
 public:
  ItemFileCheck(std::shared_ptr<const RandomReader> file, ContainerReport& report)
      : file_(std::move(file)), view_(std::make_shared<FetchedFile>(file_)), report_(report), globals_(report) {}

  void run(std::span<const Item> items) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      if (item.offset < at) continue;  // A replica.
      // An item past the file's end has been reported already.
      const bool is_cut = item.length > file_->size() - item.offset;
      if (item.offset > at) check_gap(at, std::min(item.offset, file_->size()));
      if (is_cut) return;
      if (i >= fetched_) fetch(items, i);
      check_item(item);
      at = item.offset + item.length;
    }
    if (at < file_->size()) check_gap(at, file_->size());
  }

 private:
  /// Reads the ends of the items from number `first` on, many at one time on a disk with long round trips.
  void fetch(std::span<const Item> items, std::size_t first) {
    constexpr FetchedFile::Ends kEnds{.front = 20 << 10, .end = 8 << 10};  // Cover the reads of check_zip.
    std::size_t end = first;
    const auto is_inside = [&](const Item& item) { return item.length <= file_->size() - item.offset; };
    while (end < items.size() && end - first < kMostFetched && is_inside(items[end])) ++end;
    fetched_ = first + view_->fetch(items.subspan(first, end - first), kEnds);
  }

  void check_item(const Item& item) {
    if (!item.zstd) {
      return torch_save::check_saved_zip({file_, item.offset, item.length, {}, view_}, globals_, report_);
    }
    try {
      Arena arena(std::make_shared<Budget>());
      arena.earn(item.length, file_->size());
      const std::int64_t bytes = ZstdItem(file_, item, kMaxDecodedObject, arena).size();
      const auto open = [file = file_, item, bytes] { return zstd_view(file, item, bytes); };
      torch_save::check_saved_zip({open(), 0, bytes, open}, globals_, report_);
    } catch (Error& error) {
      if (!error.kind()) error.of_kind(FindingKind::kBadHeader);
      report_.findings().report(error.in_file(file_->name()));
    }
  }

  /// Bytes [begin, end) belong to no item.
  void check_gap(std::int64_t begin, std::int64_t end) {
    std::byte head[2]{};
    if (end - begin >= 2) file_->read_at(begin, head);
    const bool is_zip = head[0] == std::byte{'P'} && head[1] == std::byte{'K'};
    Error error(ErrorCode::kCorruption, fmt::format("{} bytes at {} belong to no item", end - begin, begin));
    error.in_file(file_->name()).of_kind(FindingKind::kExtraFile);
    if (!is_zip) {
      return report_.findings().report(
          error.of_kind(FindingKind::kBadHeader).because("bytes were added, or .metadata is from a different save"));
    }
    report_.findings().warn(error.because("they contain a zip that .metadata does not name"));
    torch_save::check_saved_zip({file_, begin, end - begin}, globals_, report_);
  }

  static constexpr std::size_t kMostFetched = 64;

  const std::shared_ptr<const RandomReader> file_;
  const std::shared_ptr<FetchedFile> view_;  ///< Has the ends of the items before number `fetched_` in memory.
  std::size_t fetched_ = 0;
  ContainerReport& report_;
  torch_save::GlobalLister globals_;
};

/// Reads and compares at once everything that a container reports.
class ItemReport final : public ContainerReport {
 public:
  explicit ItemReport(std::shared_ptr<const RandomReader> file) : file_(std::move(file)) {}
  void on_crc_run(CrcRange run) override {
    constexpr std::int64_t kBlock = 1 << 20;
    const std::shared_ptr<const RandomReader> bytes = run.decoded ? run.decoded() : file_;
    std::vector<std::byte> block;
    std::uint32_t crc = 0;
    for (std::int64_t at = 0; at < run.bytes; at += std::ssize(block)) {
      block.resize(static_cast<std::size_t>(std::min(kBlock, run.bytes - at)));
      bytes->read_at(run.offset + at, block);
      crc = crc32(block, crc);
    }
    if (!run.crc32 || *run.crc32 == crc) return;
    found_.report(Error(ErrorCode::kCorruption, fmt::format("{} does not match its CRC-32", run.name))
                      .in_file(file_->name())
                      .of_kind(FindingKind::kCrcMismatch));
  }
  void on_crcs_checked(std::int64_t) override {}
  void on_global(std::string_view) override {}
  Findings& findings() override { return found_; }
  std::optional<Error> first() const {
    return found_.all().empty() ? std::nullopt : std::optional(found_.all().front());
  }

 private:
  std::shared_ptr<const RandomReader> file_;
  CollectedFindings found_;
};

bool begins_as_safetensors(const RandomReader& file) {
  std::array<std::byte, kSignatureBytes> head{};
  if (file.size() < std::ssize(head)) return false;
  file.read_at(0, head);
  return is_safetensors(head);
}

}  // namespace

std::optional<Error> fault_of_item(const std::shared_ptr<const RandomReader>& file, const Item& item) {
  ItemReport report(file);
  torch_save::GlobalLister globals(report);
  try {
    torch_save::check_saved_zip({file, item.offset, item.length}, globals, report);
  } catch (const Error& error) {
    if (!is_damage(error) && error.code() != ErrorCode::kUnsupported) throw;
    return error;
  }
  return report.first();
}

void check_item_file(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                     ContainerReport& report) {
  if (begins_as_safetensors(*file)) {
    return report.findings().report(written_as_safetensors().in_file(file->name()).of_kind(FindingKind::kBadHeader));
  }
  ItemFileCheck(file, report).run(items);
}

void check_metadata_file(const RandomReader& file, ContainerReport& report) {
  const std::int64_t bytes = pickle::scan(file, 0);
  std::vector<std::byte> pickle(static_cast<std::size_t>(bytes));
  file.read_at(0, pickle);
  torch_save::GlobalLister(report).list(pickle);
  if (bytes == file.size()) return;
  report.findings().report(Error(ErrorCode::kCorruption, fmt::format("{} bytes follow the pickle", file.size() - bytes))
                               .in_file(file.name())
                               .expected(bytes)
                               .found(file.size())
                               .of_kind(FindingKind::kBadPickle));
}

namespace {

/// Whether the range is exactly one zip, with all its parts at their proper offsets.
bool is_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t offset, std::int64_t length) {
  try {
    const zip::ZipReader zip(file, offset, length);
    return true;
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return false;
  }
}

/// Returns the error for a zip that starts at an item's offset but ends elsewhere. \pre `items` are by offset
std::optional<Error> other_border(const zip::FoundZip& found, std::span<const Item> items) {
  const std::int64_t last_end = items.back().offset + items.back().length;
  if (found.begin == last_end) {
    return misplaced(fmt::format("the file has an extra item at {}, after the last one in .metadata", last_end));
  }
  const auto item = std::ranges::lower_bound(items, found.begin, {}, &Item::offset);
  if (item == items.end() || item->offset != found.begin || item->offset + item->length == found.end) {
    return std::nullopt;
  }
  return misplaced(fmt::format("the item at {} is intact, but its length is not the one in .metadata", found.begin))
      .expected(item->length)
      .found(found.end - found.begin);
}

}  // namespace

Error misplaced(std::string what) {
  return Error(ErrorCode::kCorruption, std::move(what))
      .because(
          "the file belongs to another rank or save, or .metadata is damaged; even the items that fit cannot be "
          "trusted")
      .of_kind(FindingKind::kRankMismatch);
}

std::optional<Error> misplaced_items(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                                     Arena& arena) {
  if (items.empty() || std::ranges::any_of(items, &Item::zstd)) return std::nullopt;
  const std::int64_t size = file->size();
  const auto behind = std::ranges::lower_bound(items, size, {}, &Item::offset);
  const std::span<const Item> there(items.begin(), behind);
  if (there.empty()) return std::nullopt;
  const std::int64_t end = there.back().offset + there.back().length;
  const bool ends_as_item = end == size && is_zip(file, there.back().offset, there.back().length);
  if (ends_as_item && there.back().is_cut) {
    return misplaced(fmt::format("the item at {} is complete and shorter than in .metadata", there.back().offset));
  }
  if (ends_as_item && behind != items.end()) {
    return misplaced(fmt::format("it ends with a whole item, and .metadata has {} more in it", items.end() - behind));
  }
  if (ends_as_item &&
      std::ranges::all_of(there, [&](const Item& item) { return is_zip(file, item.offset, item.length); })) {
    return std::nullopt;
  }
  arena.earn(0, file->allocated_bytes(0, size));
  for (const zip::FoundZip& found : zip::scan_zips(file, 0, size, arena)) {
    if (!found.is_whole || !is_zip(file, found.begin, found.end - found.begin)) continue;
    if (std::optional<Error> error = other_border(found, there)) return error;
  }
  return std::nullopt;
}

}  // namespace shard::dcp
