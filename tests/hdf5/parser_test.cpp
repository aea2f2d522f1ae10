#include "formats/hdf5/parser.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/hdf5/run_parser.h"
#include "tests/hdf5/entry_text.h"
#include "tests/hdf5/parsed_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard::hdf5 {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<fs::path> golden_files() {
  std::vector<fs::path> files;
  for (const auto& each : fs::directory_iterator(SHARD_TEST_DATA "/hdf5")) {
    if (each.path().extension() == ".h5") files.push_back(each.path());
  }
  std::ranges::sort(files);
  return files;
}

TEST(Hdf5Parser, SaysWhatTheFilesOfTwoVersionsOfH5pyHold) {
  ASSERT_FALSE(golden_files().empty());
  for (const fs::path& path : golden_files()) {
    const std::string expected = content_of(fs::path(path).replace_extension(".txt"));
    EXPECT_EQ(parsed_text(content_of(path)), expected) << path;
  }
}

TEST(Hdf5Parser, NamesTheFileInItsErrors) {
  const Error error = test::error_of([] { parse_bytes("not an HDF5 file", [](const Entry&) {}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.file(), "/file.h5");
}

TEST(Hdf5Parser, RefusesAnEmptyFile) {
  test::expect_error(ErrorCode::kCorruption, "", [] { parse_bytes("", [](const Entry&) {}); });
}

TEST(Hdf5Parser, EndsWhereTheCallerThrows) {
  const std::string links = content_of(SHARD_TEST_DATA "/hdf5/h5py37-links.h5");
  test::expect_error(ErrorCode::kInterrupted, "enough",
                     [&] { parse_bytes(links, [](const Entry&) { throw Error(ErrorCode::kInterrupted, "enough"); }); });
}

TEST(Hdf5Parser, PassesOnWhatReadingTheFileThrows) {
  const std::string types = content_of(SHARD_TEST_DATA "/hdf5/h5py37-types.h5");
  const auto state = std::make_shared<MemoryState>();
  state->put("/file.h5", std::as_bytes(std::span(types)));
  const std::unique_ptr<RandomReader> file = make_memory_disk(state)->open("/file.h5");
  state->fail_at(state->calls());
  Arena arena(std::make_shared<Budget>());
  ParserTime time;
  test::expect_error(ErrorCode::kNotFound, "",
                     [&] { run_parser({SHARD_HDF5_PARSER}, *file, arena, time, [](const Entry&) {}); });
}

TEST(Hdf5Parser, EarnsEachByteOnce) {
  const std::string layouts = content_of(SHARD_TEST_DATA "/hdf5/h5py37-layouts.h5");
  const auto budget = std::make_shared<Budget>();
  parse_bytes(
      layouts, [](const Entry&) {}, budget);
  EXPECT_LE(budget->read(), static_cast<std::int64_t>(layouts.size()));
  EXPECT_GT(budget->read(), 0);
}

TEST(Hdf5Parser, IsAResourceErrorWhereTheProgramIsAbsent) {
  test::expect_error(ErrorCode::kResource, "cannot start the parser",
                     [] { parse_bytes("x", [](const Entry&) {}, nullptr, {"/nonexistent/shard-hdf5-parser"}); });
}

}  // namespace
}  // namespace shard::hdf5
