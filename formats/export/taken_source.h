/// \file
/// Finds the checkpoint in a folder that a user named: a run's folder, a trainer's checkpoint-N, a model's folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/detect.h"
#include "libshard/io/source_store.h"

namespace shard {

struct TakenSource {
  std::string label;               ///< A text for users; files of ranks as a pattern.
  std::vector<std::string> paths;  ///< The paths to open.
  bool is_found = false;           ///< It is below the folder that the user named.
  std::string place{};             ///< The folder of these files; empty if the user named the files themselves.
  std::vector<std::string> other_weights{};  ///< Names in `place`: weights that the folder's loader does not open.
};

/// The only checkpoint that `search` finds below `folder`. Nothing if the folder is a checkpoint itself, if there are
/// several below it, or if its file `latest` names a different one.
/// \throws Error kInterrupted, kResource, kPeer  a folder cannot be read
std::optional<TakenSource> take_only_checkpoint(const SourceStore& store, const std::string& folder, SearchFor search);

/// The model that an export reads. In a folder that a library loads, it is the weights that its loader opens. In a
/// folder above checkpoints, it is the only checkpoint of a model. Otherwise it is the folder itself. \throws Error
/// kInvalidArgument  there are several; suggests each. kCorruption, kUnsupported  see detect_format
TakenSource take_model(const SourceStore& store, const std::string& folder);

}  // namespace shard
