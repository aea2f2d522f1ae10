/// \file
/// Whether a selection fits a format, before anything is made of it. Inside libshard/catalog only.
#pragma once

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection.h"
#include "libshard/catalog/target.h"

namespace shard {

/// \throws Error kUnsupported  objects for a format without them, the first few named.
void check_objects(const Selection& selection, const FormatTraits& traits);

/// Names tell everything apart. `whole`: each name would become one tensor.
/// \throws Error kUnsupported  two paths with one name (except where the tree is kept); per-rank entries for pieces.
/// \throws Error kCorruption  ranks hold different values under one name and one would have to be chosen.
void check_names(const Catalog& source, const Selection& selection, const FormatTraits& traits, bool whole);

}  // namespace shard
