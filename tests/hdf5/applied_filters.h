/// \file
/// Chunks to read, made by the filters of encode_filters.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/hdf5/chunk_view.h"
#include "tests/formats/bytes_file.h"
#include "tests/hdf5/encode_filters.h"

namespace shard::hdf5::testing {

/// Numbers that change slowly and some noise: compresses, also when shuffled.
inline std::string sample(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::uint32_t random = 7;
  for (std::size_t i = 0; i < bytes; ++i) {
    random = random * 1664525 + 1013904223;
    text[i] = static_cast<char>(i % 4 == 0 ? random >> 24 : i / (64 * (i % 4 + 1)));
  }
  return text;
}

/// A chunk in a file, with a byte before and after it.
struct StoredChunk {
  StoredChunk(const std::string& stored, std::size_t bytes, std::vector<Filter> applied, std::uint32_t skipped = 0)
      : filters(std::move(applied)), file(std::make_shared<shard::testing::BytesFile>("<" + stored + ">", "a.h5")) {
    chunk.file = file;
    chunk.place = {.offset = 1, .bytes = static_cast<std::uint32_t>(stored.size()), .skipped = skipped};
    chunk.bytes = static_cast<std::int64_t>(bytes);
    chunk.filters = filters;
    chunk.shown = "chunk (0, 1) of dataset /w";
  }
  std::shared_ptr<const RandomReader> view() const { return decoded_chunk(chunk); }

  std::vector<Filter> filters;
  std::shared_ptr<shard::testing::BytesFile> file;
  FilteredChunk chunk;
};

inline std::string read(const RandomReader& view, std::int64_t offset, std::size_t bytes) {
  std::string out(bytes, '?');
  view.read_at(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace shard::hdf5::testing
