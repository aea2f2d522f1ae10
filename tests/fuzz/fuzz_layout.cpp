#include "libshard/catalog/layout.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    shard::parse_layout_document({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const shard::Error&) {
  }
  return 0;
}
