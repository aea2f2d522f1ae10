#include "formats/parts/zip/zip.h"
#include "tests/fuzz/target.h"

// Opens a zip and reads all of its records.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  const fuzz::Content content{std::string(fuzz::as_text(data, size)), static_cast<std::int64_t>(size)};
  try {
    const zip::ZipReader reader(std::make_shared<fuzz::InputFile>(content, "in.zip"), 0, content.size);
    for (const zip::Record& record : reader.records()) reader.read(record, 1 << 20);
  } catch (const Error&) {
  }
  return 0;
}
