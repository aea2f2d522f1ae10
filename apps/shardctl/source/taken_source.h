/// \file
/// Finds the checkpoint in the folder that the user named: a run's folder, a trainer's checkpoint-N, a model's folder.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/export/loader_files.h"

namespace shard::app {

struct TakenSource {
  std::string label;               ///< For people; files of ranks as a pattern.
  std::vector<std::string> paths;  ///< What to open.
  bool is_found = false;           ///< It is below the folder that was named.
  std::string place{};             ///< The folder of these files; empty where the user named the files themselves.
  std::vector<std::string> other_weights{};  ///< Names in `place`: weights that its loader does not open.
};

/// Replaces the sources of a verb that are folders above exactly one checkpoint by that, and says so. Other sources
/// stay: opening a folder above several fails with a line for each. Collective. \throws Error kResource  a folder
/// cannot be read
void take_sources(const Session& session, Request& options);

/// The model that export reads. In a folder that a library loads it is the weights that its loader opens; in a folder
/// above checkpoints the only one of a model.
/// \throws Error kInvalidArgument  several; the hint has a line for each. kCorruption, kUnsupported  see detect_format
TakenSource take_model(const Session& session, const ReadRequest& options);

}  // namespace shard::app
