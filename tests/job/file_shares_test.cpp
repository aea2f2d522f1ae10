// How ranks divide a large file of an object store.
#include "libshard/job/file_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/bytes.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// A file with a header of 10 bytes and storages of these sizes.
Catalog one_file(const std::vector<std::int64_t>& sizes) {
  Catalog catalog;
  for (const std::int64_t bytes : sizes) testing::add_storage(catalog, 0, bytes, catalog.storages.empty() ? 10 : 0);
  return catalog;
}

FileShares share(const Catalog& catalog, int ranks, std::int64_t step = 8) {
  return share_files(catalog, std::vector<int>(catalog.files.size()), ranks, [step](std::int64_t) { return step; });
}

TEST(FileShares, AreDividedAtStepsNearTheBeginsOfStorages) {
  const FileShares shares = share(one_file({20, 20, 20, 20}), 2);
  EXPECT_THAT(shares.storage_ranks, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(shares.of_files, ElementsAre(ElementsAre(0, 48, 90))) << "the third storage begins at 50";
  EXPECT_EQ(shares.rank_at(0, 47), 0);
  EXPECT_EQ(shares.rank_at(0, 48), 1);
}

TEST(FileShares, AreEmptyForRanksWithoutStorages) {
  const FileShares shares = share(one_file({100, 10}), 3);
  EXPECT_THAT(shares.storage_ranks, ElementsAre(0, 2));
  EXPECT_THAT(shares.of_files, ElementsAre(ElementsAre(0, 112, 112, 120)));
  EXPECT_EQ(shares.rank_at(0, 112), 2);
}

TEST(FileShares, AreNotMadeOfSmallFilesOrOfManyOrIfTheOutputHasNone) {
  EXPECT_THAT(share(one_file({4, 1}), 2).of_files, IsEmpty());
  EXPECT_THAT(share(one_file({20, 20}), 2, 0).of_files, IsEmpty());
  Catalog many = one_file({100, 100});
  testing::add_storage(many, 1, 100);
  EXPECT_THAT(share(many, 2).of_files, IsEmpty());
  EXPECT_EQ(share(many, 3).of_files.size(), 2);
}

TEST(FileShares, AreMadeOfNumberedFilesButNotOfFilesOfRanks) {
  Catalog catalog = one_file({20, 20, 20, 20});
  catalog.files[0].rank = 0;
  EXPECT_THAT(share(catalog, 2).of_files, ElementsAre(ElementsAre(0, 48, 90)));
  catalog.world_size = 1;
  EXPECT_THAT(share(catalog, 2).of_files, IsEmpty());
}

class TextFile final : public FileWriter {
 public:
  void write_at(std::int64_t offset, std::span<const std::byte> data) override {
    writes.emplace_back(offset, test::as_text(data));
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  std::vector<std::pair<std::int64_t, std::string>> writes;
};

TEST(SharedFile, KeepsTheBytesOfOthers) {
  TextFile file;
  SharedFile shared(&file, {4, 8});
  shared.write_at(0, test::as_span("0123456789"));
  shared.write_at(5, test::as_span("xy"));
  shared.write_at(8, test::as_span("z"));
  EXPECT_THAT(file.writes, ElementsAre(Pair(4, "4567"), Pair(5, "xy")));
  std::vector<std::pair<std::int64_t, std::string>> kept;
  for (const auto& [offset, bytes] : shared.take_kept()) kept.emplace_back(offset, test::as_text(bytes));
  EXPECT_THAT(kept, ElementsAre(Pair(0, "0123"), Pair(8, "89"), Pair(8, "z")));
  EXPECT_THAT(shared.take_kept(), IsEmpty());
}

TEST(SharedFile, WithoutAShareKeepsAll) {
  SharedFile shared(nullptr, {8, 8});
  shared.write_at(6, test::as_span("abcd"));
  ASSERT_EQ(shared.take_kept().size(), 2);
}

}  // namespace
}  // namespace shard
