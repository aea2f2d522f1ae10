#include "libshard/repair/lost_note.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/repair/salvaged_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

Loss tensor(const std::string& name) {
  return {.what = Loss::What::kTensor,
          .name = name,
          .dtype = "bfloat16",
          .shape = std::vector<std::int64_t>{4, 3},
          .boxes = {{{2, 0}, {2, 3}}},
          .file = "__1_0.distcp",
          .why = "record data/0: its bytes do not match their checksum"};
}

std::optional<LostNote> read(const std::string& text) {
  Catalog catalog;
  catalog.metadata[kLostNote] = text;
  return read_lost_note(catalog);
}

TEST(LostNote, IsReadAsItWasWritten) {
  const std::vector<Loss> losses{tensor("w"), {.what = Loss::What::kFile, .file = "a.pt", .why = "it is missing"}};
  const auto note = read(dump_lost_note(losses));
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->losses, losses);
  EXPECT_EQ(note->count, 2);
}

TEST(LostNote, IsAbsentWhereNothingWasRepaired) { EXPECT_FALSE(read_lost_note(Catalog()).has_value()); }

TEST(LostNote, ListsTheFirstAndCountsAll) {
  const std::vector<Loss> losses(kMostNoted + 5, tensor("w"));
  const auto note = read(dump_lost_note(losses));
  EXPECT_EQ(note->losses.size(), kMostNoted);
  EXPECT_EQ(note->count, std::ssize(losses));
}

TEST(LostNote, KeepsTheCountOfEarlierRepairs) {
  Catalog catalog;
  const std::uint32_t storage = testing::add_storage(catalog, 0, 4);
  testing::add_tensor(catalog, "a", DType::kFloat32, {1}, {{{0}, {1}, {1}, 0, storage}});
  validate_catalog(catalog);
  for (const std::vector<Loss>& losses : {std::vector<Loss>{tensor("w")}, std::vector<Loss>()}) {
    catalog.metadata[kLostNote] = dump_lost_note(losses, 49'999);
    Salvage salvage;
    const std::vector<std::vector<std::byte>> files(1, std::vector<std::byte>(4));
    const auto reader = without_losses(std::make_unique<testing::MemoryReader>(catalog, files), salvage, 1);
    const auto note = read_lost_note(reader->catalog());
    ASSERT_TRUE(note.has_value());
    EXPECT_EQ(note->losses, losses);
    EXPECT_EQ(note->count, 49'999 + std::ssize(losses));
  }
}

TEST(LostNote, OfNamesThatAreNotUtf8CanBeRead) {
  EXPECT_EQ(read(dump_lost_note(std::vector{tensor("w\xFFx")}))->losses[0].name, "w\uFFFDx");
}

TEST(LostNote, ThatIsNotOneIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"schema":"other"})", R"({"schema":"shardctl.lost/1","lost":7,"count":0})",
        R"({"schema":"shardctl.lost/1","lost":[{}],"count":1})"}) {
    test::expect_error(ErrorCode::kCorruption, "cannot read a repair's note", [&] { read(text); });
  }
}

TEST(Salvage, CountsATensorOnceWithAllItsBoxes) {
  Salvage salvage;
  salvage.lose_tensor("w", "a", "first");
  salvage.lose(tensor("w"));
  salvage.report(Error(ErrorCode::kCorruption, "again").of_tensor("w"));
  salvage.report(Error(ErrorCode::kNotFound, "gone").in_file("b").because("why"));
  ASSERT_EQ(salvage.losses().size(), 2U);
  EXPECT_EQ(salvage.losses()[0].dtype, "bfloat16");
  EXPECT_EQ(salvage.losses()[0].boxes.size(), 1U);
  EXPECT_EQ(salvage.losses()[0].why, "first");
  EXPECT_EQ(salvage.losses()[1].why, "gone: why");
}

}  // namespace
}  // namespace shard
