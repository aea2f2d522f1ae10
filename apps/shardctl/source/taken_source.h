/// \file
/// The checkpoints in the folders that the user named.
#pragma once

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "formats/export/taken_source.h"

namespace shard::app {

/// Replaces sources that are folders above exactly one checkpoint by that, with a note. Other sources stay: opening a
/// folder above several fails with a line for each. `takes_each`: each source is a checkpoint of its own. Collective.
/// \throws Error kResource  a folder cannot be read
void take_sources(const Session& session, ReadRequest& read, bool takes_each);

/// The model that export reads; see shard::take_model. Paths that are not one folder are read as they are.
TakenSource take_model(const Session& session, const ReadRequest& read);

}  // namespace shard::app
