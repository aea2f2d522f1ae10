/// \file
/// Writes dcp checkpoints as torch 2.11 does: one `__R_0.distcp` for each rank that holds something, `.metadata` last.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::dcp {

std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::dcp
