/// \file
/// Finds the checkpoint of a model in what people have at hand: a trainer's checkpoint-N, a run's folder.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/options.h"
#include "apps/shardctl/session.h"

namespace shard::app {

struct TakenSource {
  std::string label;               ///< For people; files of ranks as a pattern.
  std::vector<std::string> paths;  ///< What to open.
  bool is_found = false;           ///< It lies below what was named.
};

/// What is named where that is a checkpoint, or where --from says so; else the model's checkpoint below it.
/// \throws Error kInvalidArgument  several; the hint has a line for each. kCorruption, kUnsupported  see detect_format
TakenSource take_source(const Session& session, const SourceOptions& options);

}  // namespace shard::app
