/// \file
/// The file with which Megatron's programs say which iteration of a run they saved last.
#pragma once

#include <string>
#include <string_view>

#include "libshard/io/source_store.h"

namespace shard {

inline constexpr std::string_view kTrackerName = "latest_checkpointed_iteration.txt";

/// The name of the iteration's folder that latest_checkpointed_iteration.txt in `folder` says: "iter_0000100" or
/// "release"; empty where there is no such file, or where it says something else. \throws Error kNotFound  it cannot
/// be read.
std::string tracked_iteration(const SourceStore& store, const std::string& folder);

}  // namespace shard
