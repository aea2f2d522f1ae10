#include "formats/torch/format.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

// data.pkl of a torch.save file that is sound otherwise; the first byte chooses byte order and unknown globals.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  shard::fuzz::InputFiles files;
  files.put("x.pt", shard::fuzz::saved_zip(shard::fuzz::as_text(data + 1, size - 1), (data[0] & 1) != 0));
  shard::OpenOptions options;
  options.opaque_globals = (data[0] & 2) != 0;
  shard::fuzz::open_as(shard::kTorchFormat, files, {"/in/x.pt"}, options);
  return 0;
}
