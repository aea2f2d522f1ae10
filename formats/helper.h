/// \file
/// What a program that links the formats was started as: itself, or a helper of itself.
///
/// The parser of HDF5 files runs in a process of its own (formats/hdf5/README.md). It is a program beside the plug-in;
/// in the program as one file there is nothing beside it, and that program starts itself under the parser's name.
#pragma once

#include <optional>
#include <span>

namespace shard {

/// To be called first in main(). `arguments`: argv, the program's name included. Does a helper's work and takes its
/// rights away from the process. \returns its exit code; nothing where the program was started as itself
std::optional<int> run_as_helper(std::span<char*> arguments);

}  // namespace shard
