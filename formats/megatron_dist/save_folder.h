/// \file
/// Where in a run's save folder the checkpoint lies. Inside formats/megatron_dist only.
#pragma once

#include <string>
#include <string_view>

#include "libshard/io/source_store.h"

namespace shard::megatron_dist {

inline constexpr std::string_view kConfigName = "metadata.json", kCommonFile = "common.pt",
                                  kCommonItem = "common_state/shard_0_1";

/// Whether the folder is one checkpoint: its metadata.json names the back end torch_dist. Reads at most 64 KiB.
bool is_checkpoint(const SourceStore& store, const std::string& folder);

/// Whether the metadata.json of a checkpoint says that its common data were saved. \pre is_checkpoint
bool names_common(const SourceStore& store, const std::string& folder);

/// \throws Error kUnsupported  metadata.json names a version of the format, or a form of the common data, that is not
/// known; kCorruption (kind bad_header)  something that is no version. \pre is_checkpoint
void check_versions(const SourceStore& store, const std::string& folder);

/// The folder of one checkpoint that `path` is or holds: itself; the iteration that latest_checkpointed_iteration.txt
/// names, a number or "release"; `weights` (NeMo 2) or `model_weights` (NeMo 1). Empty where there is none.
std::string find_checkpoint(const SourceStore& store, const std::string& path);

}  // namespace shard::megatron_dist
