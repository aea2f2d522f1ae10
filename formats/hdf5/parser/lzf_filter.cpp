#include "formats/hdf5/parser/lzf_filter.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "formats/hdf5/library/handle.h"
#include "formats/parts/decoded_view/lzf_stream.h"

namespace shard::hdf5 {

namespace {

/// Decodes a chunk. Parameter 2 is its size, which limits the output. \returns the bytes in `*buffer`; 0 if it failed
std::size_t decode(unsigned flags, std::size_t parameter_count, const unsigned* parameters, std::size_t bytes,
                   std::size_t* room, void** buffer) noexcept {
  constexpr std::size_t kChunkBytes = 2;
  if ((flags & H5Z_FLAG_REVERSE) == 0 || parameter_count <= kChunkBytes) return 0;
  const std::size_t most = std::max<std::size_t>(parameters[kChunkBytes], 1);
  auto* const out = static_cast<std::byte*>(H5allocate_memory(most, false));
  if (out == nullptr) return 0;
  decoded_view::LzfStream stream;
  std::span<const std::byte> in(static_cast<const std::byte*>(*buffer), bytes);
  const std::optional<std::size_t> made = stream.decode(in, std::span(out, most));
  if (!made || !in.empty() || !stream.may_end()) {
    H5free_memory(out);
    return 0;
  }
  H5free_memory(*buffer);
  *buffer = out;
  *room = most;
  return *made;
}

}  // namespace

void register_lzf_filter() {
  static const H5Z_class2_t kFilter{H5Z_CLASS_T_VERS, kLzfFilter, 0, 1, "lzf", nullptr, nullptr, decode};
  checked(H5Zregister(&kFilter));
}

}  // namespace shard::hdf5
