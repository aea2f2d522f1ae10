#include "formats/safetensors/format.h"
#include "tests/fuzz/target.h"

// A whole file: length, header, data.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shard::fuzz::InputFiles files;
  files.put("x.safetensors", std::string(shard::fuzz::as_text(data, size)));
  shard::fuzz::open_as(shard::kSafetensorsFormat, files, {"/in/x.safetensors"});
  return 0;
}
