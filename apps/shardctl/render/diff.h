/// \file
/// The result of `diff` and its output.
#pragma once

#include <cstddef>
#include <string>

#include "apps/shardctl/session/session.h"
#include "libshard/catalog/catalog.h"
#include "libshard/compare/difference.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// One of the two checkpoints.
struct ShownSide {
  const std::string& label;  ///< The source as the user wrote it.
  const Catalog& catalog;
};

/// The parts of a comparison for printing. Ownership: borrows all of them.
struct Compared {
  ShownSide a, b;
  const Difference& difference;
  std::size_t limit;  ///< At most this many entries of each kind are listed.
};

/// Prints lines for people.
void render_text(const Session& session, const Compared& compared);
/// Prints one `shardctl.diff/1`.
void render_json(JsonWriter& json, const Compared& compared);

}  // namespace shard::app
