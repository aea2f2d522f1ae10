#include "tests/hdf5/parsed_file.h"

#include <fmt/format.h>

#include "libshard/core/error.h"
#include "tests/hdf5/entry_text.h"
#include "tests/support/memory_disk.h"

namespace shard::hdf5 {

namespace {

std::unique_ptr<RandomReader> file_of(const std::string& content) {
  const auto state = std::make_shared<MemoryState>();
  state->put("/file.h5", std::as_bytes(std::span(content)));
  return make_memory_disk(state)->open("/file.h5");
}

}  // namespace

FileFacts parse_bytes(const std::string& content, const std::function<void(const Entry&)>& each, ParserTime& time) {
  Arena arena(std::make_shared<Budget>());
  return run_parser({SHARD_HDF5_PARSER}, *file_of(content), arena, time, each);
}

FileFacts parse_bytes(const std::string& content, const std::function<void(const Entry&)>& each,
                      std::shared_ptr<Budget> budget, const ParserProgram& program) {
  Arena arena(budget != nullptr ? std::move(budget) : std::make_shared<Budget>());
  ParserTime time;
  return run_parser(program, *file_of(content), arena, time, each);
}

std::string parsed_text(const RandomReader& file, const ParserProgram& program) {
  std::string text;
  try {
    Arena arena(std::make_shared<Budget>());
    ParserTime time;
    const FileFacts facts =
        run_parser(program, file, arena, time, [&](const Entry& entry) { text += to_text(entry) + "\n"; });
    for (const std::string& each : facts.skipped) text += fmt::format("skipped {}\n", each);
    text += fmt::format("superblock {}, user block {}\n", facts.superblock_version, facts.user_block_bytes);
  } catch (const Error& error) {
    text += fmt::format("{}: {}", code_name(error.code()), error.what());
    text += error.why().empty() ? "\n" : fmt::format(" ({})\n", error.why());
  }
  return text;
}

std::string parsed_text(const std::string& content) { return parsed_text(*file_of(content), {SHARD_HDF5_PARSER}); }

}  // namespace shard::hdf5
