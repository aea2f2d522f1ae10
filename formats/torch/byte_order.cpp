#include "formats/torch/byte_order.h"

#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"

namespace shard::torch_save {

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
  const std::vector<std::byte> content = zip.read(*record, kLongestOrder);
  const std::string_view order(reinterpret_cast<const char*>(content.data()), content.size());
  if (order == "little" || order == "big") return order == "big";
  throw Error(ErrorCode::kCorruption, "the byteorder record is neither little nor big")
      .of_kind(FindingKind::kBadHeader)
      .found(order);
}

}  // namespace shard::torch_save
