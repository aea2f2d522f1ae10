/// \file
/// The checkpoints in the folders that the user named.
#pragma once

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "formats/export/taken_source.h"

namespace shard::app {

/// Replaces the sources of a verb that are folders above exactly one checkpoint by that, and says so. Other sources
/// stay: opening a folder above several fails with a line for each. Collective. \throws Error kResource  a folder
/// cannot be read
void take_sources(const Session& session, Request& options);

/// The model that export reads; see shard::take_model. Paths that are not one folder are read as they are.
TakenSource take_model(const Session& session, const ReadRequest& options);

}  // namespace shard::app
