// shard-hdf5-parser FILE_BYTES CPU_SECONDS MEMORY_BYTES: describes the content of an HDF5 file. See parse.h.
#include "formats/hdf5/parser/parse.h"

int main(int argc, char** argv) { return shard::hdf5::run_parse({argv, static_cast<std::size_t>(argc)}); }
