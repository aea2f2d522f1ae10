/// \file
/// Parameters around sharded tensors: torch saves them without the call that wraps a plain tensor.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "libshard/core/value.h"

namespace shard::torch_ranks {

/// The tree under `root` in which `_rebuild_parameter(tensor, ...)` of each tensor in `is_cut` is the tensor itself, by
/// number; `is_parameter` then says so. Containers in which nothing changed are shared with `root`. `lose` gets the
/// name of each whose call held attributes.
/// Ownership: new nodes lie in `arena`. \throws Error kCorruption  too deep, or too many steps.
Value* unwrap_parameters(Arena& arena, Value& root, const std::vector<bool>& is_cut, std::vector<bool>& is_parameter,
                         const std::function<void(std::string_view name)>& lose);

}  // namespace shard::torch_ranks
