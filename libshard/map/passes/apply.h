/// \file AppliedMap: converts logical tensors to stored ones, and back to a catalog for the planner. Pure.
///
/// There are two steps, before and after the writer places the target. First, the stored tensors are described in a
/// separate catalog, from which a target is laid out and placed like any other. Then the map is undone over the placed
/// target. Its chunks become boxes of the logical tensors, so that the plan has logical tensors on both sides.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/map/arithmetic/compose.h"
#include "libshard/map/arithmetic/rule_parts.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// A tensor of zeros for padding.
struct PaddingTensor {
  Dims shape;
  DType dtype{};
};

class AppliedMap {
 public:
  /// \throws Error kInvalidArgument  names that no rule matches (the message has the first few); a rule that must match
  ///   and does not; two stored tensors with one name; tensors of different dtypes in one; a missing variable.
  /// \throws Error kNotFound         one of several tensors of a stored one is missing; the message names it.
  /// \throws Error kUnsupported      ranks have different values of a tensor.
  /// Ownership: refers to the arenas of source and selection. `stored` and everything built from it keep them alive.
  AppliedMap(const Catalog& source, const Selection& selection, const ModelMap& map)
      : AppliedMap(source, selection, map, false) {}

  /// The tensors to store, as a synthetic source: whole tensors, each in its own storage, without real files.
  const Catalog& stored() const { return stored_; }
  /// Everything in stored(), and the objects of the first selection.
  const Selection& selection() const { return selection_; }
  /// The tensors that must follow the source's own tensors before the plan is made.
  const std::vector<PaddingTensor>& paddings() const { return paddings_; }

  /// The source's tensors whose values the map changes. \pre the reader of the plan computes them
  std::vector<MapComputed> computed() const;

  /// The number of ranks in the map's mesh. If there are several, stored() has a separate entry per rank and tensor,
  /// and only ranked_target can lay it out.
  std::int64_t ranks() const { return ranks_; }
  /// A target with separate files for each rank, named by the map (file_names.h). Tensors are sorted by name. A new
  /// file begins if the next tensor would make one larger than `max_file_bytes`.
  /// \throws Error kUnsupported  a rank stores nothing.
  Catalog ranked_target(std::string_view format, std::int64_t max_file_bytes) const;

  /// The catalog that the planner fills: the logical tensors in the files and storages of `placed`, a target of
  /// stored(). Their sources are those of the first selection. Paddings are source tensors from `first_padding` on.
  Catalog plan_target(const Catalog& placed, std::uint32_t first_padding) const;
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class Applying;
  friend class FlatUndo;
  /// \param flat_only  only rules whose tensors are in flat buffers must match something.
  AppliedMap(const Catalog& source, const Selection& selection, const ModelMap& map, bool flat_only);

  /// A logical tensor, or padding.
  struct Entry {
    std::string_view name;
    Dims shape;
    DType dtype{};
    std::uint32_t source = 0;  ///< The index in the source catalog. For padding, its number.
    bool is_padding = false, is_dropped = false;
    bool is_compared = true;  ///< Whether reading compares its replicas, or the padding with zeros.
    MapFactors factors{};
    std::vector<MapLink> links{};
  };

  Catalog stored_;
  Selection selection_;
  std::vector<Entry> entries_;
  std::vector<PaddingTensor> paddings_;
  std::vector<std::string> warnings_;
  std::int64_t ranks_ = 1;
  std::shared_ptr<const FlatBuffers> flat_;  ///< Null if no tensor is in flat buffers.
  std::uint32_t first_buffer_ = 0;           ///< In stored_: the first buffer of flat_. The others follow it.
  std::vector<std::string> rank_files_;      ///< File names, by rank.
};

}  // namespace shard
