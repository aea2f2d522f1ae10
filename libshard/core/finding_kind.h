/// \file The closed set of defects of a checkpoint: the `kind`s of `shardctl.verify/1` and `shardctl.error/1`.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard {

enum class FindingKind : std::uint8_t {
  kTruncated,          ///< A file or record ends before its contents do.
  kCrcMismatch,        ///< Bytes differ from the CRC-32 in their container.
  kHashMismatch,       ///< Bytes differ from the hash in a manifest.
  kBadHeader,          ///< A header, directory or index cannot be parsed or contradicts itself.
  kBadPickle,          ///< A pickle cannot be parsed or contradicts itself.
  kForbiddenGlobal,    ///< A pickle names a class that is not on the list.
  kMissingFile,        ///< A file that the checkpoint needs is absent.
  kExtraFile,          ///< A file does not belong to the checkpoint.
  kGap,                ///< No chunk covers some elements of a tensor.
  kOverlap,            ///< Two chunks of a tensor overlap without being replicas.
  kOutOfBounds,        ///< An offset is outside its tensor, storage or file.
  kReplicaMismatch,    ///< Replicas of a chunk, or ranks' copies of a value, differ.
  kIndexMismatch,      ///< An index and the files that it lists contradict each other.
  kMixedSave,          ///< Files come from different checkpoints.
  kRankMismatch,       ///< A file states a different rank than expected.
  kWorldSizeMismatch,  ///< A file states a different number of ranks than expected.
  kDuplicateName,      ///< A name appears twice where it must be unique.
  kDtypeMismatch,      ///< Two statements of a tensor's dtype contradict each other.
  kShapeMismatch,      ///< Two statements of a shape contradict each other.
};
inline constexpr int kFindingKindCount = static_cast<int>(FindingKind::kShapeMismatch) + 1;

/// The kind's name in documents: "crc_mismatch", "gap", ...
std::string_view kind_name(FindingKind kind);

}  // namespace shard
