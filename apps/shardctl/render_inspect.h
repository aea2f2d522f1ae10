/// \file
/// What `inspect` prints: text for people, `shardctl.inspect/1` for scripts.
#pragma once

#include "apps/shardctl/source.h"

namespace shard::app {

/// A summary, how many tensors lie how, one line a tensor (name, dtype, shape, bytes, layout, file) and one an object.
/// Columns are aligned on a terminal, else separated by tabs. With `chunks` a line a chunk below each tensor: box,
/// rank, file, place. \pre with `chunks` the chosen tensors are located.
void render_text(const Session& session, const OpenSource& source, const Selection& selection, bool chunks);

/// One document. \pre the chosen tensors are located and objects are loaded.
void render_json(const Session& session, const OpenSource& source, const Selection& selection);

}  // namespace shard::app
