/// \file
/// The file in which Megatron's programs record the last saved iteration of a run.
#pragma once

#include <string>
#include <string_view>

#include "libshard/io/source_store.h"

namespace shard {

inline constexpr std::string_view kTrackerName = "latest_checkpointed_iteration.txt";

/// The name of the iteration's folder according to latest_checkpointed_iteration.txt in `folder`: "iter_0000100" or
/// "release". Empty if the file is missing or has a different content. \throws Error kNotFound  it cannot be read.
std::string tracked_iteration(const SourceStore& store, const std::string& folder);

}  // namespace shard
