/// \file
/// Finds the checkpoint in a folder that a user named: a run's folder, a trainer's checkpoint-N, a model's folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

struct TakenSource {
  std::string label;               ///< For people; files of ranks as a pattern.
  std::vector<std::string> paths;  ///< The paths to open.
  bool is_found = false;           ///< It is below the folder that was named.
  std::string place{};             ///< The folder of these files; empty if the user named the files themselves.
  std::vector<std::string> other_weights{};  ///< Names in `place`: weights that its loader does not open.
};

/// The only checkpoint below `folder`; nothing if the folder is a checkpoint itself, if several are below it, or if its
/// file `latest` names a different one. \throws Error kResource, kPeer  a folder cannot be read
std::optional<TakenSource> take_only_checkpoint(const SourceStore& store, const std::string& folder);

/// The model that an export reads. In a folder that a library loads it is the weights that its loader opens; in a
/// folder above checkpoints the only one of a model; otherwise the folder itself. \throws Error kInvalidArgument
/// several, suggesting each. kCorruption, kUnsupported  see detect_format
TakenSource take_model(const SourceStore& store, const std::string& folder);

}  // namespace shard
