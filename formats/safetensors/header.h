/// \file
/// The header of a safetensors file: read with all rules of the reference reader, and written as it writes.
///
///     u64 N, little-endian | N bytes of JSON, spaces at its end | data
///     {"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}
///
/// Source: safetensors 0.8.0, safetensors/src/tensor.rs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::safetensors {

inline constexpr std::int64_t kLengthBytes = 8;  ///< The size of the number before the header.

/// One tensor of a header. The views are valid only during the call that receives it.
struct HeaderEntry {
  std::string_view name;
  DType dtype{};
  std::span<const std::int64_t> shape;  ///< torch's shape: the last dimension of F4 is half the header's.
  std::int64_t offset = 0;              ///< First byte in the file.
  std::int64_t bytes = 0;
};

/// The text of a header. parse_header copies everything it needs, so the text can be released before the catalog is
/// sorted. It takes a third of the memory for a million tensors.
struct HeaderText {
  std::unique_ptr<char[]> text;  ///< `bytes` characters and a NUL.
  std::int64_t bytes = 0;
  std::size_t max_entries = 0;  ///< The largest number of tensors that the text can contain, for reserving memory.
};

/// Reads the header's text and adds it to the budget of `arena`. Checks its length before it allocates memory. `shown`
/// names the file in messages. Threads: `threads` for a long text.
/// \throws Error kCorruption (kind truncated, bad_header)
HeaderText read_header_text(const RandomReader& file, const std::string& shown, int threads, Arena& arena);

/// Parses a header. Calls `entry` for each tensor in the order of the text, and fills `metadata`. Checks that the
/// tensors' bytes fill the file of `file_bytes` up to its end without holes.
/// \throws Error kCorruption (kind truncated, bad_header, shape_mismatch, gap, overlap, out_of_bounds; duplicate_name
///   for a repeated metadata key). The caller must detect repeated tensors.
/// \throws Error kUnsupported  F4 with an odd last dimension, more than kMaxDims dimensions.
///
/// Reports to `ends` if the tensors' bytes end before or after the end of the file.
/// Cost: one pass; 16 bytes of memory for each run of tensors whose bytes are consecutive in the text's order.
void parse_header(const HeaderText& header, const std::string& file, std::int64_t file_bytes,
                  std::map<std::string, std::string>& metadata, const std::function<void(const HeaderEntry&)>& entry,
                  Findings& ends = throwing_findings());

/// True if `file` starts as a safetensors file does: with a plausible length, then '{'.
bool looks_like_header(const RandomReader& file);

// Headers are written byte for byte as the reference's `save_file` does. Shared by all formats of such files.

/// The part of a tensor that a file contains: the whole tensor or a piece, row-major in a separate storage.
struct OutgoingTensor {
  const Tensor* tensor = nullptr;
  Dims shape;  ///< The piece's shape.
  Storage* storage = nullptr;
};

/// Checks that the format can store the catalog's tensors. Must be called before any of their names is written.
/// \throws Error kUnsupported  a dtype that safetensors lacks, a name that is not UTF-8 or is "__metadata__", float4
///   without dimensions.
void check_tensors(const Catalog& target);

/// Places tensors in a file. Orders them as the reference does: dtypes descending, so that wide elements come first and
/// every tensor is aligned; tensors of one dtype keep their order. Sets each storage's offset and `file.bytes`.
/// \pre check_tensors was called; file.path is set, for messages.
/// \returns the file's bytes up to its data.
/// \throws Error kUnsupported  metadata that is not UTF-8, a header over kMaxHeaderBytes.
std::string place_file(std::vector<OutgoingTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       File& file);

/// {"name": "the name with which it shares its bytes"} as JSON text, for "shardctl.aliases"; empty if there are none.
std::string aliases_text(const Catalog& target);

}  // namespace shard::safetensors
