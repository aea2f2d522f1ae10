#include "formats/dcp/format.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

// A folder: .metadata, and two files with one item each, a tensor's and an object's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = shard::fuzz::as_text(data, size);
  shard::fuzz::InputFiles files;
  files.put(".metadata", std::string(shard::fuzz::take_part(input)));
  files.put("__0_0.distcp", shard::fuzz::saved_zip(shard::fuzz::take_part(input)));
  files.put("__1_0.distcp", shard::fuzz::saved_zip(input));
  shard::fuzz::open_as(shard::kDcpFormat, files, {"/in"});
  return 0;
}
