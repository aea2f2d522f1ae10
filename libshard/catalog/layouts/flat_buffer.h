/// \file Flat buffers: tensors stored consecutively and divided among ranks. Pure arithmetic for maps, DeepSpeed and
///   Megatron.
///
/// A group of tensors is laid out in *buckets*. A bucket contains tensors one after the other. Each begins at a
/// multiple of `align`, and the bucket is padded to a multiple of `end`. Each bucket is divided into equal slices, one
/// per part. Part r stores slice r of each bucket, one after the other. The kinds differ only in their numbers:
///
///     rule          order     align    end                  a bucket ends
///     zero12        as given  1        alignment x parts    with the last tensor; see stores_tail
///     zero3         as given  1        parts                with each tensor
///     fsdp1         as given  `align`  parts                with the last tensor
///     mcore         reversed  64       lcm(parts, 128)      with the tensor that fills it, or by `ends`
///     mcore_saved   reversed  64       1                    with the last tensor (distrib_optim.pt, joined over parts)
///
/// Source: stage_1_and_2.py and stage3.py of DeepSpeed 0.18.2, torch/distributed/fsdp/_flat_param.py of PyTorch 2.11,
/// core/distributed/param_and_grad_buffer.py and core/optimizer/distrib_optimizer.py of Megatron-Core 0.16.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shard {

/// The parameters of a kind. All counts are in elements.
struct FlatRule {
  std::int64_t parts = 1;
  std::int64_t align = 1;
  std::int64_t end = 1;  ///< A multiple of `parts`.
  bool is_reversed = false;
  bool has_bucket_per_tensor = false;
  bool stores_tail = true;                    ///< False: the last part does not store the padding at its end.
  std::optional<std::int64_t> bucket_size{};  ///< A bucket of this size or more is full.
  std::size_t max_pieces = SIZE_MAX;          ///< The limit on pieces of tensors and padding.

  /// \throws Error kCorruption  a number past 63 bits. \pre for all: positive numbers
  static FlatRule zero12(std::int64_t parts, std::int64_t alignment = 2);
  static FlatRule zero3(std::int64_t parts);
  static FlatRule fsdp1(std::int64_t parts, std::int64_t align);
  static FlatRule mcore(std::int64_t parts, std::optional<std::int64_t> bucket_size);
  static FlatRule mcore_saved();
};

/// Consecutive elements in one part's slice of a bucket.
struct FlatPiece {
  std::int64_t part = 0, bucket = 0;
  std::int64_t first = 0;  ///< The position in the slice.
  std::int64_t begin = 0;  ///< The position in the tensor in row-major order, or in the padding.
  std::int64_t count = 0;

  friend bool operator==(const FlatPiece&, const FlatPiece&) = default;
};

struct FlatLayout {
  std::vector<std::vector<FlatPiece>> tensors;  ///< By tensor in the given order, then by part.
  std::vector<FlatPiece> padding;               ///< All padding except `tail`.
  std::vector<std::int64_t> slices;             ///< By bucket: the number of elements of each part.
  std::vector<std::int64_t> used;               ///< By bucket: the number of elements up to the end of its last tensor.
  std::int64_t tail = 0;                        ///< The padding elements at the last part's end that are not stored.

  /// The number of elements of each part, including padding.
  std::int64_t part_size() const;
  /// The number of elements of a part up to the end of its last tensor. \pre at most one bucket
  std::int64_t used_by(std::int64_t part) const;
};

/// Lays out tensors. `numels` are the tensors' sizes in their order. `ends`, if not empty, is true for each tensor that
/// ends a bucket.
/// \throws Error kCorruption   a size past 63 bits
/// \throws Error kUnsupported  more than rule.max_pieces
/// Cost: linear in tensors, and in the slices that each of them overlaps.
FlatLayout lay_flat(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule);

/// The pieces of one tensor under `zero3`, if its slice starts at `offset` of each part.
/// \throws Error kCorruption  as lay_flat.
std::vector<FlatPiece> lay_parted(std::int64_t numel, std::int64_t parts, std::int64_t offset = 0);
/// The number of elements of that tensor in each part, including padding.
std::int64_t parted_size(std::int64_t numel, std::int64_t parts);

/// The first element of each tensor under `mcore_saved`. Nothing if a buffer of these tensors would not have this
/// number of `elements`. It then has several buckets, and no file records their ends, because a bucket's end is stored
/// without padding. The number of buckets does not matter if all tensors except the model's first one have multiples of
/// 64 elements.
std::optional<std::vector<std::int64_t>> begins_in_saved_buffer(std::span<const std::int64_t> numels,
                                                                std::int64_t elements);

}  // namespace shard
