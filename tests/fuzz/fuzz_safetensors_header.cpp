#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shard::fuzz::open_as("safetensors", "x.safetensors", {data, size}, false);
  return 0;
}
