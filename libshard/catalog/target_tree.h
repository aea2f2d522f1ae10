/// \file
/// The objects of a target and its container tree. Inside libshard/catalog only.
#pragma once

#include "libshard/catalog/target_draft.h"

namespace shard {

/// Adds the selected objects and the root where the format holds objects.
///
/// The root is the source's tree without what was not selected, or, when names changed or there was none, one rebuilt
/// from the paths (dicts with string and integer keys become dicts, runs of indices from 0 become lists). In a tree one
/// value may stand for all aliases of a tensor; `aliases_apart` says that some are stored apart, and need one each.
/// \throws Error kInvalidArgument  leaves of a rebuilt tree inside one another.
void add_objects(TargetDraft& draft, bool aliases_apart);

}  // namespace shard
