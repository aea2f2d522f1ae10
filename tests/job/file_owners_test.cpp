#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/job/topology.h"

namespace shard {
namespace {

using ::testing::ElementsAre;

/// A file for each number: of that rank if it is not negative, with a storage unless it is -2.
Catalog files(const std::vector<int>& ranks) {
  Catalog catalog;
  for (const int rank : ranks) {
    if (rank != -2) catalog.storages.push_back({.file = static_cast<std::uint32_t>(catalog.files.size())});
    catalog.files.push_back({"", 0, std::max(rank, -1)});
  }
  return catalog;
}

TEST(FileOwners, OneRankOwnsAll) { EXPECT_THAT(file_owners(files({0, 1, -1, -2}), 1), ElementsAre(0, 0, 0, 0)); }

TEST(FileOwners, ARanksFileIsItsShares) {
  EXPECT_THAT(file_owners(files({0, 1, 2, 3, 4}), 2), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(file_owners(files({0, 1}), 4), ElementsAre(0, 2));
}

TEST(FileOwners, RanksWithoutAFileCount) {
  Catalog catalog = files({1, 3});
  EXPECT_THAT(file_owners(catalog, 2), ElementsAre(0, 1));
  catalog.world_size = 8;
  EXPECT_THAT(file_owners(catalog, 2), ElementsAre(0, 0));
}

TEST(FileOwners, FilesOfWholeTensorsAreSharedByTheirNumber) {
  EXPECT_THAT(file_owners(files({-1, -1, -1, -2}), 3), ElementsAre(0, 1, 2, 0));
}

TEST(FileOwners, MetadataIsRankZeros) { EXPECT_THAT(file_owners(files({-2, 1, -2}), 2), ElementsAre(0, 1, 0)); }

}  // namespace
}  // namespace shard
