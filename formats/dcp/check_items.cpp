#include "formats/dcp/check_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/dcp/objects.h"
#include "formats/dcp/zstd_item.h"
#include "formats/parts/pickle/scan.h"
#include "formats/torch/check_saved.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"

namespace shard::dcp {
namespace {

class ItemFileCheck {
 public:
  ItemFileCheck(std::shared_ptr<const RandomReader> file, ContainerReport& report)
      : file_(std::move(file)), report_(report), globals_(report) {}

  void run(std::span<const Item> items) {
    std::int64_t at = 0;
    for (const Item& item : items) {
      if (item.offset < at) continue;  // A replica.
      // An item past the file's end has been reported already.
      const bool is_cut = item.length > file_->size() - item.offset;
      if (item.offset > at) check_gap(at, std::min(item.offset, file_->size()));
      if (is_cut) return;
      check_item(item);
      at = item.offset + item.length;
    }
    if (at < file_->size()) check_gap(at, file_->size());
  }

 private:
  void check_item(const Item& item) {
    if (!item.zstd) {
      return torch_save::check_saved_zip({file_, item.offset, item.length}, globals_, report_);
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
          error.of_kind(FindingKind::kBadHeader).because("bytes were added, or .metadata is of another save"));
    }
    report_.findings().warn(error.because("they hold a zip that .metadata does not name"));
    torch_save::check_saved_zip({file_, begin, end - begin}, globals_, report_);
  }

  const std::shared_ptr<const RandomReader> file_;
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

}  // namespace shard::dcp
