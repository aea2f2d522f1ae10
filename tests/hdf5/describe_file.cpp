// describe_file PARSER FILE: prints the parser's reply for an HDF5 file. For tests and debugging.
#include <fmt/format.h>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "tests/hdf5/parsed_file.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    fmt::print("{}", shard::hdf5::parsed_text(*shard::posix_disk().open(argv[2]), {argv[1]}));
  } catch (const shard::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
