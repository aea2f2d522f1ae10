// describe_file PARSER FILE: prints what the parser says of an HDF5 file, and its errors. For tests and for looking.
#include <fmt/format.h>

#include <cstdio>

#include "formats/hdf5/run_parser.h"
#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "tests/hdf5/entry_text.h"

int main(int argc, char** argv) {
  using namespace shard;
  if (argc != 3) return 2;
  try {
    const std::unique_ptr<RandomReader> file = posix_disk().open(argv[2]);
    Arena arena(std::make_shared<Budget>());
    const hdf5::FileFacts facts = hdf5::run_parser(
        {argv[1]}, *file, arena, [](const hdf5::Entry& entry) { fmt::print("{}\n", hdf5::to_text(entry)); });
    for (const std::string& each : facts.skipped) fmt::print("skipped {}\n", each);
    fmt::print("superblock {}, user block {}\n", facts.superblock_version, facts.user_block_bytes);
    fmt::print(stderr, "read {} spent {} of {}\n", arena.budget()->read(), arena.budget()->spent(),
               arena.budget()->limit());
  } catch (const Error& error) {
    fmt::print("{}: {}: {}\n", code_name(error.code()), error.what(), error.why());
    return 1;
  }
}
