/// \file
/// The parser's process, from its start to its end. Inside formats/hdf5 and formats only.
#pragma once

#include <span>

namespace shard::hdf5 {

/// Describes the content of an HDF5 file: see ../parser.h and ../reply.h. Descriptor 0 is a socket to the program that
/// reads the file. `arguments` are the name, then FILE_BYTES CPU_SECONDS MEMORY_BYTES. Drops all rights except reading
/// the socket and allocating memory, and ends the process after the answer. \returns an exit code if it could not start
int run_parse(std::span<char*> arguments);

}  // namespace shard::hdf5
