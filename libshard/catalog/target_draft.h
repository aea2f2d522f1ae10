/// \file
/// A target catalog while it is built, and the step that cuts tensors (target_cut.cpp). Inside libshard/catalog only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/format_traits.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/selection.h"
#include "libshard/catalog/target_sharing.h"
#include "libshard/core/checked.h"

namespace shard {

/// The state that the steps of make_target share. `selected` is an index into Selection::tensors; target tensors have
/// the same indices. Ownership: source, selection and traits must outlive it.
struct TargetDraft {
  /// Copies the metadata and records the borrowed arenas. There are no tensors yet.
  TargetDraft(const Catalog& from, const Selection& what, const FormatTraits& format);

  const Tensor& source_tensor(std::size_t selected) const { return source.tensors[selection.tensors[selected].source]; }
  /// Starts a tensor in `builder`.
  Tensor& begin_tensor(std::size_t selected);
  /// A stored tensor with the properties of the source's first one.
  StoredTensor make_stored(std::size_t selected, Dims shape) const;
  /// A storage with the location of the source's first one. The caller sets its file.
  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes);
  static std::int64_t bytes_of(Dims sizes, DType dtype) { return checked_bytes(checked_numel(sizes), dtype); }

  const Catalog& source;
  const Selection& selection;
  const FormatTraits& traits;
  const SharingPlan sharing;
  Catalog target;
  CatalogBuilder builder{target};
};

/// Adds the selected tensors in pieces, each row-major in a separate storage, with its rank in StoredTensor::rank. With
/// `traits.aliases`, aliases with equal cuts share the storages of their pieces; all other sharing ends, with a
/// warning. A tensor without elements that no rank would hold is stored on rank 0. Sets shardings and world_size.
///
/// Shardings describe in placements what the chunks describe in boxes, if placements can express it. For RanksLayout
/// (one axis without a name) and MeshLayout, they are the layout's, with negative and missing dimensions resolved. For
/// KeepLayout and LikeLayout, they are those of the followed checkpoint. If that has none and the format keeps empty
/// pieces, they are S(d) on one axis if its boxes are those of torch.chunk, one per rank in order. A rule that cuts a
/// dimension in a different order than slowest axis first has none.
///
/// If a format joins a rank's boxes (not `one_box_per_item`), KeepLayout and LikeLayout join them according to the
/// sharding, and add empty pieces if the format keeps them.
///
/// \pre the layout may cut, and the format has pieces
/// \returns whether some aliases are stored apart from their originals.
/// \throws Error  as make_target.
bool add_pieces(TargetDraft& draft, const Layout& layout);

/// Adds one file per rank that stores something, in rank order. Rank 0 has one even if it stores only objects. With
/// `uncut_on_all`, every rank of world_size has one. Storages receive the files of their ranks. \pre add_pieces, and
/// objects are added
void add_rank_files(TargetDraft& draft);

}  // namespace shard
