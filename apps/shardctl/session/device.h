/// \file
/// The device that --device selects.
#pragma once

#include <memory>
#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/device/device.h"

namespace shard::app {

/// Checks the value of --device. \returns the problem; empty if there is none
std::string check_device(const std::string& text);

/// This rank's device; null for --device cpu. \throws Error kUnsupported, kInvalidArgument, kResource
std::unique_ptr<Device> open_device(const Session& session, const RunRequest& run);

}  // namespace shard::app
