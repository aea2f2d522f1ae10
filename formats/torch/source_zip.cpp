#include "formats/torch/source_zip.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/bytes.h"
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
    throw Error(ErrorCode::kCorruption, "cannot find the tensors in the file: data.pkl is lost")
        .in_file(shown)
        .of_kind(FindingKind::kBadPickle)
        .because(left + ", but only data.pkl has names, dtypes and shapes");
  }
  if (zip.find("byteorder") != nullptr || (salvaged.has_order && !is_lost("/byteorder"))) return;
  throw Error(ErrorCode::kCorruption, "cannot find the byte order of the file: its record is lost")
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

namespace {

constexpr std::int64_t kLongestOrder = 64;

/// \throws Error  a record that is not a storage has two different names.
void check_no_other_name(const zip::ZipReader& zip) {
  const std::string storages = zip.folder() + "/data/";
  for (const zip::Record& record : zip.records()) {
    if (!record.name.starts_with(storages)) zip.data_offset(record);
  }
}

}  // namespace

bool is_big_endian(const zip::ZipReader& zip) {
  const zip::Record* record = zip.find("byteorder");
  if (record == nullptr) {
    check_no_other_name(zip);
    return false;
  }
  const Bytes content = zip.read(*record, kLongestOrder);
  const std::string_view order = as_text(content);
  if (order == "little" || order == "big") return order == "big";
  throw Error(ErrorCode::kCorruption, "the byteorder record is neither little nor big")
      .of_kind(FindingKind::kBadHeader)
      .found(order);
}

}  // namespace shard::torch_save
