#include <cstdlib>

#include "formats/parts/zip/scan.h"
#include "tests/fuzz/target.h"

// Opens a zip for repair: records that it reports as intact can be read, and their CRCs are right.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  const fuzz::Content content{std::string(fuzz::as_text(data, size)), static_cast<std::int64_t>(size)};
  const auto file = std::make_shared<fuzz::InputFile>(content, "in.zip");
  Arena arena(std::make_shared<Budget>());
  arena.earn(0, content.size);
  try {
    const zip::SalvagedZip salvaged = zip::salvage_zip(file, 0, content.size, arena);
    for (const zip::Record& record : salvaged.zip->records()) {
      const bool is_inside = record.data_offset >= 0 && record.stored_bytes >= 0 &&
                             record.data_offset <= content.size - record.stored_bytes;
      if (!is_inside) std::abort();
      if (!record.checksum() || record.bytes > (1 << 20)) continue;
      zip::content_crc(file, record);  // Throws if it cannot be read.
    }
    zip::scan_zips(file, 0, content.size, arena);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorruption && error.code() != ErrorCode::kUnsupported) std::abort();
  }
  return 0;
}
