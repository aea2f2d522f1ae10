#include "formats/hdf5/parser/chunk_places.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "formats/hdf5/parser/describe_type.h"
#include "formats/hdf5/parser/refusal.h"

namespace shard::hdf5 {

namespace {

constexpr std::uint32_t kAllFilters = ~std::uint32_t{0};

/// H5Dget_chunk_info of libhdf5 1.10 walks the index from its begin for each chunk. Only H5Ddebug walks it once, and
/// prints it on stdout. This stands in for stdout and takes lines of the form
///
///     0x00000000      256       4016 [0, 8, 0]
///
/// that is: filters left out, stored bytes, address, and the first element with a zero for the bytes of elements.
class PrintedIndex {
 public:
  PrintedIndex(const Entry& entry, std::int64_t base_offset, bool partial_are_bare)
      : entry_(entry), base_offset_(base_offset), partial_are_bare_(partial_are_bare) {
    cookie_io_functions_t functions{};
    functions.write = [](void* self, const char* text, std::size_t bytes) noexcept {
      static_cast<PrintedIndex*>(self)->take({text, bytes});
      return static_cast<ssize_t>(bytes);
    };
    stream_ = fopencookie(this, "w", functions);
    if (stream_ == nullptr) throw std::bad_alloc();
    std::swap(stream_, stdout);
  }
  ~PrintedIndex() {
    std::swap(stream_, stdout);
    fclose(stream_);
  }
  PrintedIndex(const PrintedIndex&) = delete;
  PrintedIndex& operator=(const PrintedIndex&) = delete;

  std::vector<ChunkPlace> finish() {
    fflush(stdout);
    if (is_broken_) throw_malformed("a place in an index of chunks has more than 63 bits");
    return std::move(chunks_);
  }

 private:
  void take(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      line_.append(text.substr(0, end));
      if (end == text.npos) return;
      take_line();
      line_.clear();
      text.remove_prefix(end + 1);
    }
  }

  void take_line() {
    const char* at = line_.c_str() + std::min(line_.find_first_not_of(' '), line_.size());
    if (!std::string_view(at).starts_with("0x")) return;  // The index as a whole, and the table's head.
    const auto number = [&](int base) {
      char* end = nullptr;
      const unsigned long long value = std::strtoull(at, &end, base);
      while (*end == ' ' || *end == ',' || *end == '[') ++end;
      at = end;
      return value;
    };
    ChunkPlace chunk;
    chunk.skipped = static_cast<std::uint32_t>(number(16));
    chunk.bytes = static_cast<std::uint32_t>(number(10));
    const unsigned long long address = number(10);
    is_broken_ |= __builtin_add_overflow(address, base_offset_, &chunk.offset);
    bool is_partial = false;
    for (std::size_t i = 0; i < entry_.space.shape.size(); ++i) {
      const auto first = static_cast<std::int64_t>(number(10));
      if (first < 0 || first >= entry_.space.shape[i]) return;  // Left over from a larger shape.
      const std::int64_t size = entry_.chunk_shape[i], shape = entry_.space.shape[i];
      chunk.number = chunk.number * boxes_along(shape, size) + first / size;
      is_partial |= first > shape - size;
    }
    if (is_partial && partial_are_bare_) chunk.skipped = kAllFilters;
    chunks_.push_back(chunk);
  }

  const Entry& entry_;
  std::int64_t base_offset_;
  bool partial_are_bare_;  ///< Chunks that reach over the dataset's end are stored without filters.
  FILE* stream_ = nullptr;
  std::string line_;
  std::vector<ChunkPlace> chunks_;
  bool is_broken_ = false;
};

std::int64_t positions_of(const Entry& entry) {
  Space grid{SpaceKind::kSimple, {}};
  for (std::size_t i = 0; i < entry.chunk_shape.size(); ++i) {
    grid.shape.push_back(boxes_along(entry.space.shape[i], entry.chunk_shape[i]));
  }
  return elements_of(grid);
}

/// An implicit index lists every position of the grid without holding anything, so the chunks must lie in the file.
void check_implicit(const ChunkedLayout& layout, const Entry& entry) {
  H5D_chunk_index_t kind{};
  checked(H5Dget_chunk_index_type(layout.dataset, &kind));
  const std::int64_t chunk_bytes = elements_of({SpaceKind::kSimple, entry.chunk_shape}) * entry.type.bytes;
  if (kind == H5D_CHUNK_IDX_NONE && positions_of(entry) > layout.file_bytes / std::max<std::int64_t>(1, chunk_bytes)) {
    throw_malformed("its chunks are more than the file holds");
  }
}

/// Whether there is an index at all. The first chunk need not be in it, which is an error of the lookup.
bool has_index(const ChunkedLayout& layout, const Entry& entry) {
  const std::vector<hsize_t> first(entry.space.shape.size());
  hsize_t bytes = 0;
  const bool is_answered = H5Dget_chunk_storage_size(layout.dataset, first.data(), &bytes) >= 0;
  H5Eclear2(H5E_DEFAULT);
  return !is_answered || bytes > 0;
}

std::vector<ChunkPlace> list_chunks(const ChunkedLayout& layout, const Entry& entry) {
  unsigned options = 0;
  checked(H5Pget_chunk_opts(layout.properties, &options));
  PrintedIndex printed(entry, layout.base_offset, (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0);
  checked(H5Ddebug(layout.dataset));
  if (H5Eget_num(H5E_DEFAULT) > 0) throw_library_error();  // H5Ddebug itself ignores what fails.
  return printed.finish();
}

}  // namespace

void find_chunks(const ChunkedLayout& layout, Entry& entry) {
  if (elements_of(entry.space) == 0) return;
  check_implicit(layout, entry);
  if (!has_index(layout, entry)) return;
  entry.chunks = list_chunks(layout, entry);
  std::ranges::sort(entry.chunks, {}, &ChunkPlace::number);
  const auto twice = std::ranges::adjacent_find(entry.chunks, {}, &ChunkPlace::number);
  if (twice != entry.chunks.end()) throw_malformed("its index lists a chunk twice");
}

}  // namespace shard::hdf5
