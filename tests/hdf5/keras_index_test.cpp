#include <gtest/gtest.h>

#include "formats/hdf5/source_files.h"
#include "libshard/core/error.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"

namespace shard::hdf5 {
namespace {

KerasIndex read(std::string_view text) {
  const auto state = std::make_shared<MemoryState>();
  const auto bytes = std::as_bytes(std::span(text));
  state->put("/m.weights.json", {bytes.begin(), bytes.end()});
  const auto disk = make_memory_disk(state);
  return read_keras_index(*disk->open("/m.weights.json"));
}

TEST(KerasIndex, AGroupLiesInOneFileOrInSeveral) {
  const KerasIndex index =
      read(R"({"metadata": {"total_size": 12}, "weight_map": {"/a/vars": "b.h5", "/c/vars": ["a.h5", "b.h5"]}})");
  EXPECT_EQ(index.files, (std::vector<std::string>{"a.h5", "b.h5"}));
  ASSERT_EQ(index.entries.size(), 3U);
  EXPECT_EQ(index.entries[0].path, "a/vars");
  EXPECT_EQ(index.entries[0].file, 1U);
  EXPECT_EQ(index.entries[1].path, "c/vars");
  EXPECT_EQ(index.entries[1].file, 0U);
  EXPECT_EQ(index.entries[2].file, 1U);
}

TEST(KerasIndex, EscapedNamesAreResolved) {
  EXPECT_EQ(read(R"({"weight_map": {"/a\u002fb": "x\u002eh5"}})").files.front(), "x.h5");
}

TEST(KerasIndex, FilesOutsideTheFolderAreRefused) {
  for (const char* file : {"../x.h5", "/x.h5", "", "..", "a/../../x.h5", "a//x.h5"}) {
    EXPECT_THROW(read(std::string(R"({"weight_map": {"/a": ")") + file + "\"}}"), Error) << file;
  }
}

TEST(KerasIndex, OtherDocumentsAreRefused) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {"/a": {}}})",
                           R"({"weight_map": {}} x)", R"({"weight_map": {}, "weight_map": {}})"}) {
    EXPECT_THROW(read(text), Error) << text;
  }
}

}  // namespace
}  // namespace shard::hdf5
