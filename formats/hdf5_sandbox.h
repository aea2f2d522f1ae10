/// \file
/// Whether this system can read HDF5 files: their parser runs only if it can filter its own system calls.
#pragma once

namespace shard {

/// Whether the kernel lets a process filter its system calls (seccomp). Changes nothing. Threads: safe.
bool has_call_filters();

}  // namespace shard
