// Jobs into an Output that is not a folder on a disk, by several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/ranks/thread_group.h"
#include "tests/support/content.h"
#include "tests/support/memory_disk.h"
#include "tests/support/memory_output.h"

namespace shard::testing {
namespace {

using ::testing::Each;
using ::testing::Field;

constexpr DType kDtypes[] = {DType::kFloat32, DType::kUint8, DType::kInt64};

class OtherOutput : public ::testing::TestWithParam<const char*> {
 protected:
  OtherOutput() {
    std::mt19937_64 random(1);
    content_ = random_content(random, 30, 9, kDtypes);
  }
  WriteCheckpoint what() const {
    const bool is_whole = std::string_view(GetParam()) == "safetensors" || std::string_view(GetParam()) == "torch";
    return {
        .format = GetParam(), .destination = "/d/out", .layout = is_whole ? Layout(ShardsLayout{5}) : RanksLayout{5}};
  }
  std::shared_ptr<MemoryObjects> write_by(int ranks) {
    auto objects = std::make_shared<MemoryObjects>();
    run_as_threads(ranks, [&](Group& group) {
      const auto output = memory_output(objects, group.rank());
      write_checkpoint(*output, group, *content_reader(content_), what());
    });
    return objects;
  }

  Content content_;
};

TEST_P(OtherOutput, HoldsTheBytesOfAFolderOnADisk) {
  const auto state = std::make_shared<MemoryState>();
  const auto fs = make_memory_disk(state);
  fs->make_folder("/d");
  write_checkpoint(*fs, *content_reader(content_), what());
  std::map<std::string, std::vector<std::byte>> files;
  for (const std::string& name : fs->list("/d/out")) files[name] = state->content("/d/out/" + name);
  EXPECT_EQ(write_by(3)->visible, files);
  EXPECT_EQ(write_by(1)->visible, files);
}

TEST_P(OtherOutput, WhatEachFileBeginsWithIsItsOwners) {
  const auto objects = write_by(3);
  std::map<std::string, int> begun_by;
  for (const MemoryObjects::Write& write : objects->writes) {
    if (write.offset == 0) begun_by[write.path] = write.rank;
  }
  EXPECT_EQ(begun_by, objects->creators);
}

/// Hashes of blocks in order, so that no block is read back. Storages of both kinds, with and without separate frames.
TEST_P(OtherOutput, OneThreadWritesEachFileFrontToBack) {
  std::mt19937_64 random(4);
  content_ = random_content(random, 20, 70, kDtypes);
  const auto objects = write_by(1);
  std::map<std::string, std::int64_t> ends;
  for (const MemoryObjects::Write& write : objects->writes) {
    std::int64_t& end = ends[write.path];
    EXPECT_GE(write.offset, end) << write.path;
    end = write.offset + write.bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, OtherOutput,
                         ::testing::Values("safetensors", "torch", "dcp", "dcp-hf", "torch-ranks"),
                         [](const auto& each) {
                           std::string name(each.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(OtherOutputOrder, EveryHeaderOfSafetensorsIsWrittenBeforeElements) {
  std::mt19937_64 random(2);
  const Content content = random_content(random, 30, 9, kDtypes);
  auto objects = std::make_shared<MemoryObjects>();
  run_as_threads(3, [&](Group& group) {
    const auto output = memory_output(objects, group.rank());
    write_checkpoint(*output, group, *content_reader(content),
                     {.format = "safetensors", .destination = "/d/out", .layout = ShardsLayout{5}});
  });
  std::map<std::string, MemoryObjects::Write> first;
  for (const MemoryObjects::Write& write : objects->writes) first.try_emplace(write.path, write);
  EXPECT_EQ(first.size(), 6U);
  for (const auto& [path, write] : first) EXPECT_EQ(write.offset, 0) << path;
}

TEST(OtherOutputFailure, LeavesNothingBehind) {
  std::mt19937_64 random(3);
  const Content content = random_content(random, 10, 9, kDtypes);
  auto objects = std::make_shared<MemoryObjects>();
  objects->creators["model-00002-of-00003.safetensors"] = 7;  // It cannot be created a second time.
  run_as_threads(3, [&](Group& group) {
    const auto output = memory_output(objects, group.rank());
    EXPECT_THROW(write_checkpoint(*output, group, *content_reader(content),
                                  {.format = "safetensors", .destination = "/d/out", .layout = ShardsLayout{3}}),
                 Error);
  });
  EXPECT_TRUE(objects->visible.empty());
  EXPECT_TRUE(objects->pending.empty());
}

}  // namespace
}  // namespace shard::testing
