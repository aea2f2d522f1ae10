/// \file
/// How long a pickle is, without reading it as one: for files in which pickles lie one behind the other.
#pragma once

#include <cstdint>

#include "libshard/io/source_store.h"

namespace shard::pickle {

/// Bytes of the pickle at `offset`, up to and with STOP; found by stepping from opcode to opcode.
/// \throws Error kCorruption (kind bad_pickle, truncated)  not an opcode of Python, or the file ends before STOP.
/// Memory: one window of 64 KiB. Cost: linear, counted strings are skipped.
std::int64_t scan(const RandomReader& file, std::int64_t offset);

}  // namespace shard::pickle
