/// \file
/// Finds the end of a pickle without loading it, for files that contain several pickles in a row.
#pragma once

#include <cstdint>

#include "libshard/io/source_store.h"

namespace shard::pickle {

/// The number of bytes of the pickle at `offset`, up to and including STOP. Steps from opcode to opcode.
/// \throws Error kCorruption (kind bad_pickle, truncated)  a byte that is not a Python opcode, or the file ends before
///   STOP.
/// Memory: one window of 64 KiB. Cost: linear; strings with a length are skipped.
std::int64_t scan(const RandomReader& file, std::int64_t offset);

}  // namespace shard::pickle
