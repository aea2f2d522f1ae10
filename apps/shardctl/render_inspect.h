/// \file
/// What `inspect` prints: text for people, `shardctl.inspect/1` for scripts.
#pragma once

#include "apps/shardctl/source.h"

namespace shard::app {

/// A summary, one line a tensor, one an object. Columns are aligned on a terminal, else separated by tabs.
void render_text(const Session& session, const OpenSource& source, const Selection& selection);

/// One document. \pre the chosen tensors are located and objects are loaded.
void render_json(const Session& session, const OpenSource& source, const Selection& selection);

}  // namespace shard::app
