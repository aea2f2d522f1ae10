/// \file
/// The classes that `.metadata` is made of, under the modules where each torch kept them.
#pragma once

#include <array>
#include <string_view>

#include "libshard/core/value.h"

namespace shard::dcp {

enum class Class { kMetadata, kTensor, kBytes, kChunk, kProperties, kIndex, kStorageInfo };
inline constexpr std::size_t kClassCount = 7;

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kOldMetadataModule = "torch.distributed._shard.checkpoint.metadata";  ///< torch 1.13.
/// Whether a class is the one that Megatron-core 0.15 derives from torch's Metadata, with the attribute `mcore_data`;
/// forks keep it in modules of their own.
bool is_megatron_metadata(std::string_view module, std::string_view name);

/// Tells the classes of one pickle apart. Threads: one. Cost: mostly one comparison of pointers.
class MetadataClasses {
 public:
  bool is(const Value& value, Class id);
  /// \throws Error kCorruption (bad_pickle)  `object` is not of that class, or has no attributes.
  void need(const Value& object, Class id);

 private:
  std::array<const Value*, kClassCount> seen_{};  ///< The global that named each class last: mostly there is one.
};

}  // namespace shard::dcp
