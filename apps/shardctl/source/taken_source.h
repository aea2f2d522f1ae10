/// \file
/// Finds the checkpoints in the folders that the user names.
#pragma once

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "formats/detect.h"
#include "formats/export/taken_source.h"

namespace shard::app {

/// Replaces each source that is a folder above exactly one checkpoint by this checkpoint, with a note. Other sources
/// are unchanged; opening a folder above several checkpoints fails with a line for each. With `takes_each`, each source
/// is a separate checkpoint. Collective.
/// \throws Error kResource  a folder cannot be read
void take_sources(const Session& session, ReadRequest& read, bool takes_each, SearchFor search = SearchFor::kIntact);

/// The model that export reads; see shard::take_model. Paths are read unchanged unless they are one folder.
TakenSource take_model(const Session& session, const ReadRequest& read);

}  // namespace shard::app
