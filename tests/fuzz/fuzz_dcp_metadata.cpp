#include "formats/dcp/metadata.h"
#include "tests/fuzz/target.h"

// Parsed content is written again, and must parse to the same amount. The number of items may grow: each of several
// equal chunks gets a separate one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  Arena arena;
  dcp::Metadata metadata;
  try {
    metadata = dcp::parse_metadata(arena, std::as_bytes(std::span(data, size)), ".metadata");
  } catch (const Error&) {
    return 0;
  }
  for (dcp::Item& item : metadata.items) item.length = std::max<std::int64_t>(item.length, 0);
  const bool is_written = std::ranges::none_of(metadata.items, [](const dcp::Item& item) { return item.zstd; });
  if (!is_written) return 0;
  std::string written;
  dcp::dump_metadata(metadata, [&written](std::string_view piece) { written += piece; });
  Arena again;
  const dcp::Metadata back = dcp::parse_metadata(again, std::as_bytes(std::span(written)), ".metadata");
  if (back.tensors.size() != metadata.tensors.size() || back.chunks.size() != metadata.chunks.size()) __builtin_trap();
  return 0;
}
