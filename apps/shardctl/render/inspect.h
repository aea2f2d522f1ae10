/// \file
/// What `inspect` prints: text for people, `shardctl.inspect/1` for scripts.
#pragma once

#include "apps/shardctl/source/source.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

struct InspectLines {
  bool chunks = false;       ///< A line for each chunk below its tensor: box, rank, file, offsets.
  bool join_layers = false;  ///< Layers that are alike share a line; see alike_layers.h. Not with `chunks`.
};

/// A summary, the number of tensors in each layout, a header line, then a line for each tensor (name, dtype, shape,
/// size, sharding, file) and each object. Columns are aligned on a terminal, otherwise separated by tabs. \pre with
/// `chunks` the chosen tensors are located.
void render_text(const Session& session, const OpenSource& source, const Selection& selection, InspectLines lines);

/// One document. \pre the chosen tensors are located and objects are loaded.
void render_json(JsonWriter& json, const OpenSource& source, const Selection& selection);

}  // namespace shard::app
