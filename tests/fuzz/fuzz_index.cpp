#include "formats/parts/hf_index/index_file.h"
#include "tests/fuzz/target.h"

// A Hugging Face index: its names must be findable, sorted, and in files inside its folder.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  const fuzz::Content content{std::string(fuzz::as_text(data, size)), static_cast<std::int64_t>(size)};
  try {
    hf_index::WeightMap map = hf_index::read_weight_map(fuzz::InputFile(content, "index.json"));
    for (const hf_index::WeightMapEntry& entry : map.entries) {
      if (map.find(entry.name) != &entry || entry.file >= map.files.size()) __builtin_trap();
    }
    for (const std::string& file : map.files) {
      const std::string inside = "/" + file + "/";
      const bool leads_out = inside.find("//") != std::string::npos || inside.find("/../") != std::string::npos;
      if (leads_out) __builtin_trap();
    }
  } catch (const Error&) {
  }
  return 0;
}
