/// \file
/// What the parser's process does, from its start to its end. Inside formats/hdf5 and formats only.
#pragma once

#include <span>

namespace shard::hdf5 {

/// Says what an HDF5 file holds: see ../parser.h and ../reply.h. Descriptor 0 is a socket, of which the other side is
/// the program that reads the file. `arguments`: the name, then FILE_BYTES CPU_SECONDS MEMORY_BYTES. Gives up all
/// rights that reading the socket and taking memory do not need; ends the process when everything is said. \returns an
/// exit code where it could not begin
int run_parse(std::span<char*> arguments);

}  // namespace shard::hdf5
