/// \file FormatTraits: the capabilities of a format.
#pragma once

#include <string_view>

namespace shard {

/// Each format defines one constant.
struct FormatTraits {
  std::string_view name;
  bool pieces = false;                   ///< Can store boxes of tensors, not only whole tensors.
  bool single_box_items = false;         ///< Each box of a rank is a stored tensor (dcp), not all of them together.
  bool keeps_replicas = false;           ///< Each rank stores its copy. Otherwise, only the lowest rank does.
  bool keeps_empty = false;              ///< Empty pieces are written.
  bool replicate_whole_tensors = false;  ///< Unsharded tensors and objects are in every rank's file, not only rank 0's.
  bool objects = false;                  ///< Non-tensor values.
  bool sharing = false;                  ///< Shared storages, strides, views (torch). Then also `aliases`.
  bool aliases = false;       ///< Tensors of equal storage, position, shape, strides and dtype are stored once.
  bool notes = false;         ///< Can store named texts next to the tensors: Catalog::metadata.
  bool many_files = true;     ///< Whole tensors may be spread over several files.
  bool mapped_ranks = false;  ///< Per-rank files with rank-specific tensors, which only a model map can produce.
  /// With `pieces`: tensors stay whole, outside any rank's file, unless a layout is given.
  bool prefers_whole = false;
};

}  // namespace shard
