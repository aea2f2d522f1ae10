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

/// The steps of make_target share one. `selected` is an index into Selection::tensors; target tensors have the same.
/// Ownership: source, selection and traits must outlive it.
struct TargetDraft {
  /// Notes the metadata and what is borrowed; there are no tensors yet.
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
/// `traits.aliases`, aliases that are cut alike share the storages of their pieces; all other sharing ends, with a
/// warning. A tensor without elements that no rank would hold is stored on rank 0. Sets shardings and world_size.
///
/// Shardings say in words what the chunks say in boxes, where words exist: for RanksLayout (one axis without a name)
/// and MeshLayout those of the layout, negative and missing dimensions resolved; for KeepLayout and LikeLayout those of
/// the checkpoint that is followed, or where that has none and the format keeps empty pieces, S(d) on one axis if its
/// boxes are those of torch.chunk, one a rank in order. A rule that cuts a dimension in another order than slowest axis
/// first has none. Where a format joins a rank's boxes (not `one_box_per_item`), KeepLayout and LikeLayout join them as
/// the sharding says, and where it keeps empty pieces they add them.
///
/// \pre the layout may cut, and the format has pieces
/// \returns whether some aliases are stored apart from their originals.
/// \throws Error  as make_target.
bool add_pieces(TargetDraft& draft, const Layout& layout);

/// Adds one file per rank that holds something, rank 0 also for objects alone, or with `uncut_on_all` one for every
/// rank of world_size; in rank order. Storages get the files of their ranks. \pre add_pieces, and objects are added
void add_rank_files(TargetDraft& draft);

}  // namespace shard
