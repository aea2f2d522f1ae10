#include "formats/zip/zip.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  auto state = std::make_shared<MemoryState>();
  state->put("/in.zip", std::as_bytes(std::span(data, size)));
  const std::unique_ptr<FileSystem> fs = make_memory_file_system(state);
  try {
    const zip::ZipReader reader(fs->open("/in.zip"), 0, static_cast<std::int64_t>(size));
    for (const zip::Record& record : reader.records()) reader.read(record, 1 << 20);
  } catch (const Error&) {
  }
  return 0;
}
