#include "formats/torch/check_saved.h"

#include <fmt/format.h>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/pickle/pickle.h"
#include "formats/parts/pickle/scan.h"
#include "formats/parts/zip/zip_check.h"
#include "formats/torch/legacy_file.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard::torch_save {
namespace {

constexpr std::int64_t kSmall = 4096;
constexpr std::uint16_t kDeflated = 8;
constexpr int kLegacyPickles = 5;  ///< Magic number, protocol, machine, object, keys.

bool is_pickle(std::string_view record) { return record.ends_with(".pkl"); }

/// Passes on a record that is not read at once.
void hand_over(const ZipPlace& place, const zip::ZipReader& zip, const zip::Record& record, std::int64_t data,
               ContainerReport& report) {
  CrcRange run{.offset = data, .bytes = record.bytes, .name = fmt::format("record '{}'", record.name)};
  if (zip.has_checksums()) run.crc32 = record.checksum();
  run.decoded = place.decoded;
  if (record.method == kDeflated) {
    run.offset = 0;
    run.decoded = [place, data, record] {
      return decoded_view::decompressed({.file = place.decoded ? place.decoded() : place.file,
                                         .offset = data,
                                         .stored_bytes = record.stored_bytes,
                                         .bytes = record.bytes,
                                         .codec = decoded_view::Codec::kDeflate,
                                         .shown = record.name});
    };
  } else if (record.method != 0) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("record '{}' has compression method {}, which this build cannot read", record.name, record.method));
  }
  report.on_crc_run(std::move(run));
}

}  // namespace

void GlobalLister::list(std::span<const std::byte> pickle) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(pickle);
  if (!seen_.insert(hasher.finish_hex())) return;
  Arena arena(std::make_shared<Budget>());
  arena.earn(static_cast<std::int64_t>(pickle.size()));
  pickle::LoadOptions options;
  options.allow = [this](std::string_view module, std::string_view name) {
    report_.on_global(fmt::format("{}.{}", module, name));
    return true;
  };
  try {
    pickle::load(arena, pickle, options);
  } catch (const Error&) {
  }
}

void check_saved_zip(const ZipPlace& place, GlobalLister& globals, ContainerReport& report) {
  zip::check_zip(place.file, place.begin, place.bytes, report.findings(),
                 [&](const zip::ZipReader& zip, const zip::Record& record, std::int64_t data) {
                   const bool is_read = is_pickle(record.name) || record.bytes <= kSmall;
                   if (!is_read) return hand_over(place, zip, record, data, report);
                   Arena arena(std::make_shared<Budget>());  // Limits the inflated size of a pickle.
                   arena.earn(zip.allocated_bytes(record));
                   const std::vector<std::byte> content = zip.read(record, arena);
                   if (zip.has_checksums() && record.checksum()) report.on_crcs_checked(1);
                   if (is_pickle(record.name)) globals.list(content);
                 });
}

void check_saved_file(const std::shared_ptr<const RandomReader>& file, ContainerReport& report) {
  GlobalLister globals(report);
  if (!is_legacy_file(*file)) return check_saved_zip({file, 0, file->size()}, globals, report);
  try {
    std::int64_t at = 0;
    for (int i = 0; i < kLegacyPickles; ++i) {
      const std::int64_t bytes = pickle::scan(*file, at);
      std::vector<std::byte> pickle(static_cast<std::size_t>(bytes));
      file->read_at(at, pickle);
      globals.list(pickle);
      at += bytes;
    }
  } catch (const Error&) {  // The function that opened the file has reported it.
  }
}

}  // namespace shard::torch_save
