/// \file
/// Whether a selection and a layout fit a format, before anything is made of it. Inside libshard/catalog only.
#pragma once

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection.h"
#include "libshard/catalog/target.h"

namespace shard {

/// \throws Error kInvalidArgument  a layout of pieces for a format without them (KeepLayout then means whole tensors),
///   one of several files for a format with a file for every rank.
void check_layout(const Layout& layout, const FormatTraits& traits);

/// \throws Error kUnsupported  objects for a format without them, the first few named.
void check_objects(const Selection& selection, const FormatTraits& traits);

/// Names tell everything apart. `whole`: each name would become one tensor.
/// \throws Error kUnsupported  two paths with one name (except where the tree is kept); per-rank entries for pieces.
/// \throws Error kCorruption  ranks hold different values under one name and one would have to be chosen.
void check_names(const Catalog& source, const Selection& selection, const FormatTraits& traits, bool whole);

}  // namespace shard
