#include <charconv>

#include "formats/dcp_hf/format.h"
#include "tests/fuzz/target.h"

namespace {

/// The highest end in a header's data_offsets, for the file's length: `],` or `]}` after a number.
std::int64_t data_bytes(std::string_view header) {
  std::int64_t most = 0;
  for (std::size_t at = header.find("data_offsets"); at != header.npos; at = header.find("data_offsets", at + 1)) {
    const std::size_t comma = header.find(',', at);
    if (comma == header.npos) break;
    std::int64_t end = 0;
    std::from_chars(header.data() + comma + 1, header.data() + header.size(), end);
    most = std::max(most, std::min(end, std::int64_t{1} << 40));
  }
  return most;
}

std::string with_length(std::string_view header) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> 8 * i);
  return bytes.append(header);
}

}  // namespace

// The headers of a folder of two shards; their data are zeros.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  std::string_view input = fuzz::as_text(data, size);
  const std::string_view first = fuzz::take_part(input);
  fuzz::InputFiles files;
  files.put("shard-00001-model-00001-of-00001.safetensors", with_length(first), data_bytes(first));
  if (!input.empty()) files.put("shard-00002-model-00001-of-00001.safetensors", with_length(input), data_bytes(input));
  fuzz::open_as(kDcpHfFormat, files, {"/in"});
  return 0;
}
