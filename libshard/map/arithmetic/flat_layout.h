/// \file
/// Where tensors lie in a flat buffer that is cut over ranks. Pure arithmetic. Inside libshard/map only.
///
/// A group of tensors is laid out in *buckets*: one after the other, each from a multiple of `align` on, up to an end
/// that is padded to a multiple of `end`. Each bucket is cut into equal slices, one a part, and part r stores slice r
/// of each bucket, one after the other. The kinds differ in their numbers only:
///
///     kind          order    align    end          buckets
///     zero12        as given 1        2 x parts    one; the last part stores no padding at its end
///     zero3         as given 1        parts        one a tensor
///     fsdp1         as given `align`  parts        one
///     mcore_bucket  reversed 64       lcm(parts, 128)   ends with the tensor that fills it, or where it is said
///
/// Source: stage_1_and_2.py and stage3.py of DeepSpeed 0.18.2, torch/distributed/fsdp/_flat_param.py of PyTorch 2.11,
/// core/distributed/param_and_grad_buffer.py of Megatron-Core 0.16.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/map/documents/document.h"

namespace shard {

/// Of tensors and padding in slices, in one map.
inline constexpr std::size_t kMaxFlatPieces = 1 << 24;
Error too_many_pieces();

struct FlatRule {
  FlatKind kind = FlatKind::kFsdp1;
  std::int64_t parts = 1;
  std::int64_t align = 1;                     ///< Of kFsdp1.
  std::optional<std::int64_t> bucket_size{};  ///< Of kMcoreBucket: elements at which a bucket ends.
};

/// Elements that follow one another in one part's slice of a bucket.
struct FlatPiece {
  std::int64_t part = 0, bucket = 0;
  std::int64_t first = 0;  ///< Of the slice.
  std::int64_t begin = 0;  ///< Of the tensor, or of the padding.
  std::int64_t count = 0;

  friend bool operator==(const FlatPiece&, const FlatPiece&) = default;
};

struct FlatLayout {
  std::vector<std::vector<FlatPiece>> tensors;  ///< By tensor, as given.
  std::vector<FlatPiece> padding;               ///< Without `tail`.
  std::vector<std::int64_t> slices;             ///< By bucket: elements of each part.
  std::int64_t tail = 0;  ///< Elements of padding at the last part's end that it does not store (kZero12).
};

/// `numels` are the tensors' elements in their order; `ends` (of kMcoreBucket, else empty) says of each whether a
/// bucket ends with it.
/// \throws Error kInvalidArgument  an alignment or size of buckets that is not positive
/// \throws Error kCorruption       a size past 63 bits
/// \throws Error kUnsupported      more than kMaxFlatPieces
/// Cost: tensors, and the slices that each of them meets.
FlatLayout lay_flat(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule);

}  // namespace shard
