/// \file Checks of verify for quantized weights: computing them, and packing plain weights again.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compute/pack_again.h"
#include "libshard/verify/verify.h"

namespace shard::app {

/// Whether --against names a checkpoint, or an unknown file, and not a manifest.
bool names_checkpoint(const SourceStore& store, const std::string& path);

/// Computes this rank's share of the quantized weights once, for --dequantize. \returns the number of all
std::int64_t compute_weights(const Session& session, const Request& request, VerifyFindings& found, Log& log,
                             const std::stop_token& stop);

/// Packs this rank's share of the weights again, and compares with the checkpoint of --against. Differences are
/// findings. \throws Error  that checkpoint cannot be opened, or has no quantized weights; with a command for it
PackedCounts pack_again(const Session& session, const Request& request, Reader& plain, VerifyFindings& found, Log& log,
                        const std::stop_token& stop);

}  // namespace shard::app
