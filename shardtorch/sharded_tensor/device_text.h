/// \file
/// Devices by their names. Inside shardtorch/sharded_tensor only.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace shard {

/// Does the same as c10::Device's constructor, but its error, with the same text, has no backtrace. \throws c10::Error
c10::Device device_named(const std::string& text);

}  // namespace shard
