#include "formats/torch/salvaged_zip.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

/// Refuses a zip without its pickle, which contains all names, or without its byte order, which defines the elements.
void refuse_unnamed(const zip::SalvagedZip& salvaged, const std::string& shown) {
  const zip::ZipReader& zip = *salvaged.zip;
  const auto is_lost = [&](std::string_view name) {
    return std::ranges::any_of(salvaged.lost, [&](const zip::LostRecord& lost) { return lost.name.ends_with(name); });
  };
  const std::string left = fmt::format("{} other records of the zip are whole", zip.records().size());
  if (zip.find("data.pkl") == nullptr) {
    throw Error(ErrorCode::kCorruption, "cannot tell which tensors the file holds: data.pkl is lost")
        .in_file(shown)
        .of_kind(FindingKind::kBadPickle)
        .because(left + ", but only data.pkl has names, dtypes and shapes");
  }
  if (zip.find("byteorder") != nullptr || (salvaged.has_order && !is_lost("/byteorder"))) return;
  throw Error(ErrorCode::kCorruption, "cannot tell the byte order of the file: its record is lost")
      .in_file(shown)
      .of_kind(FindingKind::kBadHeader)
      .because(left);
}

}  // namespace

zip::SalvagedZip salvage_saved_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin,
                                   std::int64_t bytes, Arena& arena, const std::string& shown) {
  zip::SalvagedZip salvaged = zip::salvage_zip(file, begin, bytes, arena);
  refuse_unnamed(salvaged, shown);
  return salvaged;
}

std::string why_lost(std::span<const zip::LostRecord> lost, std::string_view key) {
  const std::string name = fmt::format("data/{}", key);
  for (const zip::LostRecord& each : lost) {
    if (each.name.ends_with("/" + name)) return fmt::format("record {}: {}", name, each.why);
  }
  return fmt::format("record {} is missing", name);
}

}  // namespace shard::torch_save
