/// \file
/// Layouts of pieces: what each rank stores of each tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/target.h"

namespace shard {

/// True for layouts that may cut tensors.
bool cuts_tensors(const Layout& layout);

/// Answers for one tensor after another; placements of equal shapes are worked out once.
class PieceRule {
 public:
  /// \throws Error kInvalidArgument  the layout contradicts itself.
  PieceRule(const Catalog& source, const Layout& layout, const FormatTraits& traits);
  ~PieceRule();

  /// The pieces that `traits` says are stored, by rank; one empty whole piece on rank 0 for a tensor without elements.
  /// Valid until the next call.
  /// \throws Error kInvalidArgument  --like lacks the tensor or has another shape.
  /// \throws Error kUnsupported  a cut inside a byte.
  std::span<const RankPiece> pieces(const SelectedTensor& selected);

  /// \throws Error kInvalidArgument  a rule that no tensor matched, a dimension that no tensor has.
  void check_used() const;
  /// How many ranks the layout has, as far as it says.
  std::optional<std::int64_t> world_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard
