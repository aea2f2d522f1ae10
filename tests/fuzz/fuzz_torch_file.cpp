#include "formats/torch/format.h"
#include "tests/fuzz/target.h"

// A whole file, zip or legacy.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shard::fuzz::InputFiles files;
  files.put("x.pt", std::string(shard::fuzz::as_text(data, size)));
  shard::fuzz::open_as(shard::kTorchFormat, files, {"/in/x.pt"});
  return 0;
}
