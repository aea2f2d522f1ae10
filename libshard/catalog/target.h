/// \file
/// From a source catalog, a selection and a layout to the catalog of what shall be written. Pure.
#pragma once

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/format_traits.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/selection.h"

namespace shard {

/// Builds the target: tensors (with `source` set) in name order, stored tensors, chunks, storages with `bytes`, and
/// files with a rank, in file order. Paths, sizes and places of files, and Storage::offset, are for the writer to fill.
///
/// A tensor of the same dtype that shares its storage with another one, or is not row-major, keeps storage and strides
/// where `traits.sharing` allows: its storage becomes the union of the spans that the selected views use, listed in
/// `storage_copies`. Aliases that are cast alike stay aliases; other casts are stored apart, with a warning. So it is
/// with whole tensors; of those that a layout may cut, aliases that are cut alike share the storages of their pieces,
/// all else is stored apart, with a warning. Elsewhere every name is stored in full and row-major. A tensor without
/// elements that no rank would hold is stored on rank 0.
///
/// `shardings` say in words what the chunks say in boxes, where words exist: for --ranks (one axis without a name) and
/// --mesh those of the layout, negative and missing dimensions resolved; for KeepLayout and LikeLayout those of the
/// checkpoint that is followed, or where that has none and the format keeps empty pieces, S(d) on one axis if its boxes
/// are those of torch.chunk, one a rank in order. A rule that cuts a dimension in another order than slowest axis first
/// has none. Where a format joins a rank's boxes (not `one_box_per_item`), KeepLayout and LikeLayout join them as the
/// sharding says, and where it keeps empty pieces they add them. `rank_files` is the source's. With `uncut_on_all`
/// there is a file for every rank of `world_size`.
///
/// `root` is the source's tree without what was not selected, or, when names changed or there was none, one rebuilt
/// from the paths (dicts with string and integer keys become dicts, runs of indices from 0 become lists); null where
/// the format holds no objects.
///
/// \throws Error kInvalidArgument  a layout that does not fit: --like lacks a name or has another shape, a --place that
///   matches nothing or has the wrong number of placements, a --dim other than 0 that no tensor has, a layout of pieces
///   for a format without them (KeepLayout then means whole tensors), one of several files for a format with a file for
///   every rank, leaves of a rebuilt tree inside one another.
/// \throws Error kUnsupported  objects for a format without them (the first few named), a cut inside a byte, per-rank
///   tensors that differ, two paths with one name (except where the tree is kept).
/// \throws Error kCorruption  ranks hold different values under one name and one would have to be chosen.
/// Ownership: borrows the source's arena and the selection's.
Catalog make_target(const Catalog& source, const Selection& selection, const Layout& layout,
                    const FormatTraits& traits);

}  // namespace shard
