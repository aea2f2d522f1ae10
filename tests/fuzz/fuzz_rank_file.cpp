#include "formats/torch_ranks/format.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

// The pickles of two ranks' files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = shard::fuzz::as_text(data, size);
  shard::fuzz::InputFiles files;
  files.put("rank-0.pt", shard::fuzz::saved_zip(shard::fuzz::take_part(input)));
  files.put("rank-1.pt", shard::fuzz::saved_zip(input));
  shard::fuzz::open_as(shard::kTorchRanksFormat, files, {"/in/rank-0.pt", "/in/rank-1.pt"});
  return 0;
}
