// adapter_config.json, and the patterns in it.
#include "libshard/compute/adapter_config.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const shard::AdapterConfig config = shard::parse_adapter_config(shard::fuzz::as_text(data, size), "fuzz");
    config.scale_of("model.layers.0.self_attn.q_proj", 16);
    config.scale_of("", 1);
  } catch (const shard::Error&) {
  }
  return 0;
}
