/// \file
/// The result of `diff`, and how it is printed.
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
  const std::string& label;  ///< As the user wrote it.
  const Catalog& catalog;
};

/// What is printed. Ownership: refers to all of it.
struct Compared {
  ShownSide a, b;
  const Difference& difference;
  std::size_t limit;  ///< At most so many entries of each kind are listed.
};

/// Lines.
void render_text(const Session& session, const Compared& compared);
/// One `shardctl.diff/1`.
void render_json(JsonWriter& json, const Compared& compared);

}  // namespace shard::app
