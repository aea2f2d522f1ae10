/// \file
/// Writes Hugging Face's index of a folder as its own libraries do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard::hf_index {

/// One line of the index: a tensor and its file.
struct IndexEntry {
  std::string_view tensor, file;
};

/// The index's text. \throws Error kUnsupported  a name is not valid UTF-8.
std::string dump_index(std::int64_t total_bytes, std::span<const IndexEntry> entries);

}  // namespace shard::hf_index
