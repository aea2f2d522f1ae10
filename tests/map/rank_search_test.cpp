#include "libshard/map/matching/rank_search.h"

#include <gtest/gtest.h>

#include <map>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using Folders = std::map<std::string, std::vector<std::string>>;

std::optional<RankPaths> search(const std::string& keys, const Folders& folders) {
  const MapDocument document =
      parse_map_document(R"({"schema": "shardctl.layout/1", "rules": [], )" + keys + "}", "map.json");
  return find_rank_paths(document, MapVariables(document, {}), [&](const std::string& folder) {
    const auto found = folders.find(folder);
    return found == folders.end() ? std::vector<std::string>() : found->second;
  });
}

ErrorCode code_of(const std::string& keys, const Folders& folders) {
  return test::error_of([&] { search(keys, folders); }).code();
}

constexpr const char* kGrid =
    R"("mesh": {"pp": "p", "tp": "t"}, "files": {"path": "t{tp:02d}_p{pp}/m.pt", "root": "a.b"})";

TEST(RankSearch, OrdersFilesByTheMeshWhateverTheirNamesSay) {
  const auto found = search(kGrid, {{"", {"t00_p0", "t00_p1", "t01_p0", "t01_p1", "t1_p1", "other"}},
                                    {"t00_p0", {"m.pt"}},
                                    {"t00_p1", {"m.pt"}},
                                    {"t01_p0", {"m.pt", "n.pt"}},
                                    {"t01_p1", {"m.pt"}}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->mesh, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(found->ranks, 4);
  std::vector<std::string> paths;
  for (const RankPath& file : found->files) paths.push_back(file.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"t00_p0/m.pt", "t01_p0/m.pt", "t00_p1/m.pt", "t01_p1/m.pt"}));
  EXPECT_EQ(found->files[0].root, (std::vector<std::string>{"a", "b"}));
}

TEST(RankSearch, AnAxisMayHaveTheNameOfTheRank) {
  const auto found = search(R"("mesh": {"rank": 2, "tp": 2}, "files": {"path": "r{rank}_t{tp}.pt"})",
                            {{"", {"r0_t0.pt", "r0_t1.pt", "r1_t0.pt", "r1_t1.pt"}}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->mesh, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(found->files[2].path, "r1_t0.pt");
  EXPECT_EQ(found->files[2].rank, 2);
}

TEST(RankSearch, FindsNothingWhereNoNameFits) { EXPECT_FALSE(search(kGrid, {{"", {"rank0.pt", "rank1.pt"}}})); }

TEST(RankSearch, NamesAMissingFileHoweverManyTheNamesSuggest) {
  const std::string line = R"("mesh": {"tp": "t"}, "files": {"path": "r{tp}.pt"})";
  EXPECT_EQ(code_of(line, {{"", {"r0.pt", "r2.pt"}}}), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(line, {{"", {"r0.pt", "r1000000.pt"}}}), ErrorCode::kNotFound);
  const Error error = test::error_of([&] { search(line, {{"", {"r0.pt", "r999999999.pt"}}}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.expected(), "at most 1048576 ranks");
}

TEST(RankSearch, RefusesFilesOfTwoSaves) {
  EXPECT_EQ(
      code_of(R"("mesh": {"tp": "t"}, "files": {"path": "step{s}-{tp}.pt"})", {{"", {"step1-0.pt", "step2-0.pt"}}}),
      ErrorCode::kInvalidArgument);
}

TEST(RankSearch, TakesTheWritersCoordinateWhereNamesStateNone) {
  const std::string mesh = R"("mesh": {"dp": 2, "tp": "t"}, )";
  const Folders names{{"", {"r0.pt", "r1.pt"}}};
  const auto found = search(mesh + R"("files": {"path": "r{tp}.pt", "writer": {"dp": "last"}})", names);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->files[0].rank, 2);
  EXPECT_EQ(found->files[1].rank, 3);
  EXPECT_EQ(code_of(mesh + R"("files": {"path": "r{tp}.pt"})", names), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(mesh + R"("files": {"path": "r{tp}.pt", "writer": {"dp": 2}})", names),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace shard
