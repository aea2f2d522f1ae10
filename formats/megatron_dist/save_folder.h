/// \file
/// Finds the checkpoint in a run's save folder. Inside formats/megatron_dist only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libshard/io/source_store.h"

namespace shard::megatron_dist {

inline constexpr std::string_view kConfigName = "metadata.json", kCommonFile = "common.pt",
                                  kCommonItem = "common_state/shard_0_1";

/// Whether the folder is a checkpoint: its metadata.json names the back end torch_dist. Reads at most 64 KiB.
bool is_checkpoint(const SourceStore& store, const std::string& folder);

/// Whether the metadata.json of a checkpoint records that common data were saved. \pre is_checkpoint
bool names_common(const SourceStore& store, const std::string& folder);

/// The iteration in the name of a checkpoint's folder, iter_0000100; nothing for other names.
std::optional<std::int64_t> iteration_in_name(const std::string& folder);

/// Checks the versions in metadata.json. \pre is_checkpoint
/// \throws Error kUnsupported  an unknown version of the format, or an unknown form of the common data; kCorruption
///   (kind bad_header)  a value that is not a version.
void check_versions(const SourceStore& store, const std::string& folder);

/// Finds the checkpoint folder at or below `path`: the folder itself; the iteration in
/// latest_checkpointed_iteration.txt, a number or "release"; `weights` (NeMo 2) or `model_weights` (NeMo 1). Empty if
/// there is none.
std::string find_checkpoint(const SourceStore& store, const std::string& path);

}  // namespace shard::megatron_dist
