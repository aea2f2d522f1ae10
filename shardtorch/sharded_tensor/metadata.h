/// \file
/// The metadata of a ShardedTensor: global size, properties, and the shards of every rank.
///
/// Source: torch/distributed/_shard/metadata.py and _shard/sharded_tensor/metadata.py (torch 2.11).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/remote_device.h"

namespace shard {

using Sizes = std::vector<std::int64_t>;  ///< One number per dimension, in elements.

/// The box of one shard in the whole tensor, and its placement. Size 0 is allowed. An empty shard may be past the end.
struct ShardMetadata {
  ShardMetadata() = default;
  /// \throws c10::ValueError  different numbers of dimensions, a negative number.
  ShardMetadata(Sizes offsets, Sizes sizes, std::optional<RemoteDevice> where = std::nullopt);

  Sizes shard_offsets, shard_sizes;
  std::optional<RemoteDevice> placement;

  friend bool operator==(const ShardMetadata&, const ShardMetadata&) = default;
};
std::ostream& operator<<(std::ostream& out, const ShardMetadata& shard);

/// Programs may initialise it by position, so the order of fields matters.
struct TensorProperties {
  at::ScalarType dtype = c10::get_default_dtype_as_scalartype();
  at::Layout layout = at::kStrided;
  bool requires_grad = false;
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  bool pin_memory = false;

  /// Takes dtype, layout, requires_grad and pinned from `tensor`; memory format contiguous.
  static TensorProperties of(const at::Tensor& tensor);

  friend bool operator==(const TensorProperties&, const TensorProperties&) = default;
};
std::ostream& operator<<(std::ostream& out, const TensorProperties& properties);

/// The number of a memory format in files (MEM_FORMAT_ENCODING): 0 contiguous, 1 channels_last, 2 preserve. Nothing for
/// any other format or number.
std::optional<std::int64_t> memory_format_number(at::MemoryFormat format);
std::optional<at::MemoryFormat> memory_format_of(std::int64_t number);

struct ShardedTensorMetadata {
  std::vector<ShardMetadata> shards_metadata;
  Sizes size;
  TensorProperties tensor_properties;

  friend bool operator==(const ShardedTensorMetadata&, const ShardedTensorMetadata&) = default;
};
std::ostream& operator<<(std::ostream& out, const ShardedTensorMetadata& metadata);

/// Serialized bytes, for ranks to exchange and for programs to store. Memory format, dtype and layout are written as
/// torch's numbers.
/// \throws c10::Error  "Invalid torch.memory_format: ..."  any other memory format.
std::string serialize(const ShardedTensorMetadata& metadata);
/// \throws c10::Error  "Invalid torch.memory_format encoding: ..."; bytes that `serialize` did not write.
ShardedTensorMetadata deserialize_metadata(const std::string& bytes);

/// Checks that no two shards overlap. An empty shard has no elements and overlaps none, at any offset.
/// \throws c10::ValueError  "Shards ... and ... overlap"; "Found inconsistent ranks for shards: ...".
/// Cost: O(n log n) in the number of shards if they differ in one or two dimensions. Each further dimension adds a
/// factor log n.
void check_no_overlap(const std::vector<ShardMetadata>& shards);

/// Checks that shards are inside a tensor of that size (except offsets of empty ones) and cover it by volume.
/// \throws c10::ValueError  a negative number, "Rank of tensor is ...", "Shard offset ... exceeds tensor dim", "... do
///   not cover the entire tensor".
void check_tensor(const std::vector<ShardMetadata>& shards, at::IntArrayRef size);

}  // namespace shard

template <>
struct std::hash<shard::ShardMetadata> {
  std::size_t operator()(const shard::ShardMetadata& shard) const noexcept;
};
