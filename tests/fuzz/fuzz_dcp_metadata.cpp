#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shard::fuzz::open_as("dcp", ".metadata", {data, size}, true);
  return 0;
}
