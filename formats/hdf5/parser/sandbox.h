/// \file
/// Gives up what a parser does not need. Inside formats/hdf5/parser only.
#pragma once

#include <cstdint>

namespace shard::hdf5 {

struct SandboxLimits {
  std::int64_t cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  ///< Of address space.
};

/// Closes all descriptors but 0. Afterwards this process can read and write that one, take memory and end. It ends with
/// its parent.
/// \returns false  a limit or the filter of system calls (seccomp) cannot be set: no file may be parsed then.
bool enter_sandbox(const SandboxLimits& limits);

}  // namespace shard::hdf5
