/// \file
/// From the shapes of stored tensors to those of the logical tensors in them. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "libshard/map/model_map.h"
#include "libshard/map/rule_parts.h"

namespace shard {

/// The shapes of the logical tensors, by what ranks store: `shape_at` gives the shape at a coordinate. Their stack is
/// the stored one's. \throws Error kInvalidArgument  the document does not say enough, or contradicts the shapes.
RuleTensors tensors_of_stored(
    const ModelMap& map, std::size_t rule, std::span<const std::int64_t> coordinate,
    const std::function<std::span<const std::int64_t>(std::span<const std::int64_t>)>& shape_at);

}  // namespace shard
