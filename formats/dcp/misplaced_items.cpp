#include "formats/dcp/misplaced_items.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"

namespace shard::dcp {

namespace {

/// Whether the range is exactly one zip, with all its parts at their proper offsets.
bool is_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t offset, std::int64_t length) {
  try {
    const zip::ZipReader zip(file, offset, length);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
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
    return misplaced(fmt::format("the item at {} is whole and shorter than .metadata says", there.back().offset));
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
