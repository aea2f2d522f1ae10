/// \file
/// The files of model states of a save that is rewritten. Inside formats/deepspeed only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/deepspeed/save_reader.h"
#include "formats/deepspeed/state_trees.h"
#include "formats/deepspeed/tree_files.h"
#include "libshard/catalog/layouts/flat_buffer.h"

namespace shard::deepspeed {

/// Consecutive files in the target, starting at file `first`: one file, or one per rank if the save has them so.
/// Ownership: refers to its arguments.
class ModelFiles {
 public:
  ModelFiles(const WholeSave& whole, std::int64_t ranks, std::uint32_t first)
      : whole_(whole), ranks_(ranks), first_(first) {}

  bool are_of_ranks() const { return whole_.folder.models.empty(); }
  std::size_t count() const { return are_of_ranks() ? static_cast<std::size_t>(ranks_) : 1; }
  std::string name(std::size_t file) const;
  /// For stage 3: adds each rank's part of the frozen parameters, also to `parts`.
  void add_frozen(TreeFiles& files, std::span<RankParts> parts) const;

 private:
  const WholeSave& whole_;
  std::int64_t ranks_;
  std::uint32_t first_;
};

/// Adds a tensor with the elements of the source's `tensor`, stored in `rows`, one per rank.
void add_in_rows(TreeFiles& files, std::uint32_t tensor, std::span<const std::uint32_t> rows,
                 std::span<const FlatPiece> pieces);

}  // namespace shard::deepspeed
