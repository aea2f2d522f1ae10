/// \file
/// The output of `inspect`: text for people, `shardctl.inspect/1` for scripts.
#pragma once

#include "apps/shardctl/source/source.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

struct InspectLines {
  bool chunks = false;       ///< Below each tensor, a line per chunk: box, rank, file, offsets.
  bool join_layers = false;  ///< Identical layers share a line; see alike_layers.h. Not with `chunks`.
};

/// Prints a summary, the number of tensors per layout, a header line, and a line for each tensor (name, dtype, shape,
/// size, sharding, file) and each object. Columns are aligned on a terminal and separated by tabs otherwise.
/// \pre with `chunks`, the chosen tensors are located.
void render_text(const Session& session, const OpenSource& source, const Selection& selection, InspectLines lines);

/// Prints one document. \pre the chosen tensors are located and objects are loaded.
void render_json(JsonWriter& json, const OpenSource& source, const Selection& selection);

}  // namespace shard::app
