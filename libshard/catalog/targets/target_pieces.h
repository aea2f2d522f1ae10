/// \file Layouts of pieces: the parts of each tensor that each rank stores. Inside libshard/catalog/targets only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/targets/target.h"

namespace shard {

/// True for layouts that may shard tensors.
bool cuts_tensors(const Layout& layout);

/// The stored pieces of one tensor, and its sharding.
struct TensorPieces {
  std::span<const RankPiece> pieces;  ///< By rank.
  std::uint32_t sharding = kNoIndex;  ///< Index into PieceRule::shardings, or kNoIndex.
};

/// Computes the pieces of tensors one by one; caches placements by shape.
class PieceRule {
 public:
  /// \throws Error kInvalidArgument  the layout contradicts itself.
  PieceRule(const Catalog& source, const Layout& layout, const FormatTraits& traits);
  ~PieceRule();

  /// The pieces to store under `traits`. For a tensor without elements that no rank would store, one empty whole piece
  /// on rank 0. Valid until the next call. \throws Error kInvalidArgument  the followed checkpoint lacks the tensor or
  /// has a different shape for it. \throws Error kUnsupported  a border of pieces inside a byte.
  TensorPieces pieces(const SelectedTensor& selected);

  /// \throws Error kInvalidArgument  a rule that no tensor matched, a dimension that no tensor has.
  void check_used() const;
  /// The number of ranks in the layout, if it is defined. Always defined for formats with a file for every rank.
  std::optional<std::int64_t> world_size() const;
  /// All shardings used so far, without duplicates.
  const std::vector<Sharding>& shardings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard
