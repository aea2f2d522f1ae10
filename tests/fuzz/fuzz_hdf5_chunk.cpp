#include <optional>

#include "formats/hdf5/chunk_view.h"
#include "tests/fuzz/target.h"
#include "tests/hdf5/encode_filters.h"

namespace shard::fuzz {
namespace {

/// Bytes of an input in order; zeros after its end.
struct Numbers {
  std::string_view rest;
  std::uint32_t byte() {
    if (rest.empty()) return 0;
    const auto first = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    return first;
  }
  std::uint32_t word() {
    const std::uint32_t low = byte();
    return low | byte() << 8;
  }
};

std::vector<hdf5::Filter> filters_of(Numbers& numbers) {
  std::vector<hdf5::Filter> filters;
  for (std::uint32_t count = numbers.byte() % 5; count > 0; --count) {
    const std::uint32_t number = numbers.byte();
    filters.push_back({static_cast<hdf5::FilterKind>(number % 4), number / 4 % 20});
  }
  return filters;
}

std::string read(const RandomReader& view, std::size_t offset, std::size_t bytes) {
  std::string out(bytes, '\0');
  view.read_at(static_cast<std::int64_t>(offset), std::as_writable_bytes(std::span(out)));
  return out;
}

/// All bytes, or nothing if an Error names the problem.
std::optional<std::string> whole(const RandomReader& view) {
  try {
    return read(view, 0, static_cast<std::size_t>(view.size()));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Pieces at places that the input names must be those of `all`.
void read_pieces(const RandomReader& view, const std::string& all, Numbers numbers) {
  for (int i = 0; i < 8; ++i) {
    const std::size_t offset = numbers.word() % (all.size() + 1), bytes = numbers.word() % (all.size() - offset + 1);
    if (read(view, offset, bytes) != all.substr(offset, bytes)) __builtin_trap();
  }
}

}  // namespace
}  // namespace shard::fuzz

// A chunk with the input's filters: the input is either the stored bytes, or the elements, which are then filtered and
// changed in a few positions. Whole or in pieces, decoded at once or through streams: the result is the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  using namespace shard::fuzz;
  Numbers numbers{as_text(data, size)};
  const std::uint32_t mode = numbers.byte();
  const std::vector<hdf5::Filter> filters = filters_of(numbers);
  const std::uint32_t skipped = numbers.byte();
  const bool has_zero_width = std::ranges::any_of(
      filters, [](const hdf5::Filter& each) { return each.kind == hdf5::FilterKind::kShuffle && each.parameter == 0; });
  const bool is_encoded = mode % 2 == 1 && !has_zero_width;
  std::size_t bytes = numbers.word();
  std::string elements, stored(numbers.rest);
  std::size_t changes = 0;
  if (is_encoded) {
    changes = bytes % 4;
    elements = stored;
    bytes = elements.size();
    stored = hdf5::testing::filtered(elements, filters, skipped);
    for (std::size_t i = 0; i < changes && !stored.empty(); ++i) stored[numbers.word() % stored.size()] ^= 1;
  }
  const Content content{stored, static_cast<std::int64_t>(stored.size())};
  const hdf5::FilteredChunk chunk{.file = std::make_shared<InputFile>(content, "in.h5"),
                                  .place = {.bytes = static_cast<std::uint32_t>(stored.size()), .skipped = skipped},
                                  .bytes = static_cast<std::int64_t>(bytes),
                                  .filters = filters,
                                  .shown = "a chunk"};
  const auto small = hdf5::decoded_chunk(chunk), large = hdf5::large_chunk(chunk);
  const std::optional<std::string> all = whole(*small), streamed = whole(*large);
  if (is_encoded && changes == 0 && (all != elements || streamed != elements)) __builtin_trap();
  if (all && streamed && *all != *streamed) __builtin_trap();
  if (all) read_pieces(*small, *all, numbers);
  if (streamed) read_pieces(*large, *streamed, numbers);
  return 0;
}
