/// \file
/// Applying a map: from logical tensors to those that shall be stored, and back to what the planner fills. Pure.
///
/// Two steps, round the writer. First the stored tensors are made as a catalog of their own, with which a target is
/// laid out and placed like any other. Then the map is undone over the placed target: its chunks become boxes of the
/// logical tensors, so that the plan is one between logical tensors on both sides.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection.h"
#include "libshard/map/arithmetic/compose.h"
#include "libshard/map/arithmetic/rule_parts.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// A tensor of zeros that fills padding.
struct PaddingTensor {
  Dims shape;
  DType dtype{};
};

class AppliedMap {
 public:
  /// \throws Error kInvalidArgument  names that no rule matches (the first few named), a rule that must match and does
  ///   not, two stored tensors of one name, tensors of different dtypes in one, a missing variable.
  /// \throws Error kNotFound         one of several tensors that make a stored one is missing, by name.
  /// \throws Error kUnsupported      tensors of which ranks hold different values.
  /// Ownership: views into the arenas of source and selection, which `stored` and what is made of it keep alive.
  AppliedMap(const Catalog& source, const Selection& selection, const ModelMap& map)
      : AppliedMap(source, selection, map, false) {}

  /// The tensors to store, as a synthetic source: whole tensors, each in its own storage, without real files.
  const Catalog& stored() const { return stored_; }
  /// All of it, and the objects of the first selection.
  const Selection& selection() const { return selection_; }
  /// What the source must have too, behind its own tensors, before the plan is made.
  const std::vector<PaddingTensor>& paddings() const { return paddings_; }

  /// How many ranks the map's mesh has. Of more than one, stored() has what each rank stores as entries of its own,
  /// which only ranked_target can lay out.
  std::int64_t ranks() const { return ranks_; }
  /// A target with what each rank stores in files of its own, which have the names of the map (file_names.h): by name,
  /// and a further file where the next tensor would make one larger than `max_file_bytes`.
  /// \throws Error kUnsupported  a rank stores nothing.
  Catalog ranked_target(std::string_view format, std::int64_t max_file_bytes) const;

  /// What the planner fills: the logical tensors in the files and storages of `placed`, a target of stored(). Their
  /// sources are the first selection's; paddings are source tensors from `first_padding` on.
  Catalog plan_target(const Catalog& placed, std::uint32_t first_padding) const;
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class Applying;
  friend class FlatUndo;
  /// `flat_only`: rules whose tensors do not lie in flat buffers may match nothing.
  AppliedMap(const Catalog& source, const Selection& selection, const ModelMap& map, bool flat_only);

  /// A logical tensor, or padding.
  struct Entry {
    std::string_view name;
    Dims shape;
    DType dtype{};
    std::uint32_t source = 0;  ///< In the source catalog; of paddings their number.
    bool is_padding = false, is_dropped = false;
    bool is_compared = true;  ///< Its replicas, or the padding with zeros, when it is undone.
    std::vector<MapLink> links{};
  };

  Catalog stored_;
  Selection selection_;
  std::vector<Entry> entries_;
  std::vector<PaddingTensor> paddings_;
  std::vector<std::string> warnings_;
  std::int64_t ranks_ = 1;
  std::shared_ptr<const FlatBuffers> flat_;  ///< Null where no tensor lies in flat buffers.
  std::uint32_t first_buffer_ = 0;           ///< In stored_: of those of flat_, which follow one another.
  std::vector<std::string> rank_files_;      ///< Names, by rank.
};

}  // namespace shard
