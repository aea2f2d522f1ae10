/// \file
/// Builds the target catalog from a source catalog, a selection and a layout. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/catalog/targets/format_traits.h"
#include "libshard/core/error.h"

namespace shard {

/// Builds the target: tensors (with `source` set) in name order, stored tensors, chunks, storages with `bytes`, and
/// files with a rank, in file order. The writer sets paths, sizes and Storage::offset. `rank_files` is the source's.
///
/// Layouts that may shard tensors produce pieces if the format supports pieces (target_cut.cpp): row-major, with a file
/// for every rank that stores something. All other layouts produce whole tensors, which keep storages and strides if
/// the format has those. Objects have a tree of containers if the format supports objects.
///
/// \throws Error kInvalidArgument  a layout that does not fit: the followed checkpoint lacks a name or has a different
///   shape; a rule matches nothing or has the wrong number of placements; no tensor has the dimension to shard (except
///   0); a layout of pieces for a format without them (KeepLayout then means whole tensors); one of several files for a
///   format with a file for every rank; a leaf of a rebuilt tree inside a different leaf.
/// \throws Error kUnsupported  objects for a format without them (the message has the first few), a border of pieces
///   inside a byte, per-rank tensors that differ, two paths with one name (unless the tree is kept).
/// \throws Error kCorruption  ranks have different values under one name, and one would have to be chosen. Ownership:
///   borrows the source's arena and the selection's.
Catalog make_target(const Catalog& source, const Selection& selection, const Layout& layout,
                    const FormatTraits& traits);

/// The error about `names` (sorted, each once), of which ranks have different values, if one would have to be chosen.
Error ranks_differ(const std::vector<std::string>& names);

/// True for FSDP's rows of several parameters, whose names and shapes the checkpoint lacks: torch's `_flat_param`
/// (LOCAL_STATE_DICT), fairscale's `flat_param_0`.
bool is_flat_parameter(std::string_view name);
/// The hint of errors about torch's.
inline constexpr char kSaveWithoutFlatParameters[] =
    "save with SHARDED_STATE_DICT or FULL_STATE_DICT instead of LOCAL_STATE_DICT";

}  // namespace shard
