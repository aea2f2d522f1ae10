/// \file
/// The header of a safetensors file: read with every rule of the reference reader, and written as it writes.
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

#include "libshard/core/dtype.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::safetensors {

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::int64_t kLengthBytes = 8;  ///< The size of the number before the header.

/// A dtype as headers spell it.
struct HeaderDType {
  std::string_view name;
  DType dtype;
};
/// In the reference's enum order, by which its writer sorts.
std::span<const HeaderDType> header_dtypes();

/// Whether the reference can count the elements of a shape. It multiplies from the first dimension on, so that a 0
/// helps only what stands after it: [0, 2^40, 2^40] has 0 elements, [2^40, 2^40, 0] is too large.
bool is_countable(std::span<const std::int64_t> shape);

/// One tensor of a header. Views are valid during the call that hands it out.
struct HeaderEntry {
  std::string_view name;
  DType dtype{};
  std::span<const std::int64_t> shape;  ///< torch's: F4's last dimension is half the header's.
  std::int64_t offset = 0;              ///< First byte in the file.
  std::int64_t bytes = 0;
};

/// The text of a header. Nothing that parse_header hands out needs it afterwards, so it can go before the catalog is
/// sorted: it is a third of the memory that a million tensors take.
struct HeaderText {
  std::unique_ptr<char[]> text;  ///< `bytes` characters and a NUL.
  std::int64_t bytes = 0;
};

/// Reads the header's text. Checks its length before anything is allocated. `shown` names the file in messages.
/// \throws Error kCorruption (kind truncated, bad_header)
HeaderText read_header_text(const RandomReader& file, const std::string& shown);

/// The most tensors that the text can hold, for reserving.
std::size_t max_entries(const HeaderText& header);

/// Parses a header: calls `entry` for each tensor in the order of the text, fills `metadata`, and checks that the
/// tensors' bytes follow each other without holes up to the end of the file of `file_bytes`.
/// \throws Error kCorruption (kind truncated, bad_header, shape_mismatch, gap, overlap, out_of_bounds, duplicate_name
///   for doubled metadata keys; doubled tensors are for the caller to see)
/// \throws Error kUnsupported  F4 with an odd last dimension, more than kMaxDims dimensions.
///
/// Reports to `ends` where the tensors' bytes do not end with the file.
/// Cost: one pass; 16 bytes of memory for each run of tensors whose bytes follow each other in the text's order.
void parse_header(const HeaderText& header, const std::string& file, std::int64_t file_bytes,
                  std::map<std::string, std::string>& metadata, const std::function<void(const HeaderEntry&)>& entry,
                  Findings& ends = throwing_findings());

/// True when `file` begins as a safetensors file does: a plausible length, then '{'.
bool looks_like_header(const RandomReader& file);

}  // namespace shard::safetensors
