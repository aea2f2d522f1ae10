// Folders of torch.distributed.checkpoint: items, and rebuilt metadata.
#include "tests/repair/damage.h"

namespace shard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Dcp : Repair {
  Dcp() { write("dcp", RanksLayout{2, 0}); }

  std::string why_repaired() const { return result.at("repaired").dump(); }
};

TEST_F(Dcp, WithAFlippedElementLosesThatTensorAndNamesTheBox) {
  flip("/c/__1_0.distcp", "BBB", 10);
  repair();
  EXPECT_THAT(lost(), ElementsAre("b"));
  EXPECT_EQ(result.at("lost")[0].at("boxes"), nlohmann::json::parse(R"([{"offsets":[151],"sizes":[150]}])"));
  EXPECT_EQ(result.at("lost")[0].at("shape"), nlohmann::json({301}));
  EXPECT_EQ(result.at("lost")[0].at("file"), "__1_0.distcp");
  expect_saved({"a", "c", "d"});
}

TEST_F(Dcp, WithACutFileLosesWhatLayBehindTheCut) {
  cut("/c/__0_0.distcp", file("/c/__0_0.distcp").find("CCC") + 20);
  repair();
  EXPECT_THAT(lost(), ElementsAre("c", "d"));
  expect_saved({"a", "b"});
}

TEST_F(Dcp, WithAFileCutBehindTheLastElementsLosesNothing) {
  const std::string whole = file("/c/__0_0.distcp");
  cut("/c/__0_0.distcp", whole.rfind("PK\x01\x02"));
  repair();
  EXPECT_THAT(lost(), IsEmpty());
  expect_saved({"a", "b", "c", "d"});
}

TEST_F(Dcp, WithoutAFileLosesAllTensorsThatHaveABoxThere) {
  content["small"] = filled(DType::kUint8, {1}, 's');  // Only on rank 0.
  write("dcp", RanksLayout{2, 0}, "/e");
  remove("/e/__1_0.distcp");
  repair(0, {}, "/e");
  EXPECT_THAT(lost(), ElementsAre("a", "b", "c", "d"));
  expect_saved({"small"});
}

TEST_F(Dcp, ItemsWithADamagedDirectoryAreWhole) {
  flip("/c/__0_0.distcp", "PK\x01\x02", 1, 5);
  repair();
  EXPECT_THAT(lost(), IsEmpty());
  expect_saved({"a", "b", "c", "d"});
}

TEST_F(Dcp, KeepsTheLayout) {
  flip("/c/__1_0.distcp", "BBB");
  repair();
  const auto reader = open_checkpoint(*world.fs, "/d");
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.world_size, 2);
  EXPECT_EQ(catalog.tensors[0].chunk_count, 2U);
}

// ---- Metadata

TEST_F(Dcp, TakesMetadataThatASaveLeftUnderItsTemporaryName) {
  put("/c/.metadata.tmp", file("/c/.metadata"));
  for (const bool is_cut : {false, true}) {
    remove("/c/.metadata");
    if (is_cut) put("/c/.metadata", file("/c/.metadata.tmp").substr(0, 100));
    repair();
    EXPECT_THAT(lost(), IsEmpty());
    expect_saved({"a", "b", "c", "d"});
    remove("/d");
  }
  EXPECT_THAT(why_repaired(), HasSubstr("rebuilt .metadata from .metadata.tmp"));
}

TEST_F(Dcp, WithoutMetadataCannotBeNamedAndAsksForAnotherSave) {
  remove("/c/.metadata");
  repair(4);
  EXPECT_EQ(result.at("message"), "cannot identify the tensors in the items");
  EXPECT_THAT(world.err, HasSubstr("the 2 .distcp files contain 8 boxes of tensors and 0 objects"));
  EXPECT_THAT(world.err, HasSubstr("--like"));
}

TEST_F(Dcp, WithoutMetadataIsNamedByAnotherSaveOfTheJob) {
  for (auto& [name, tensor] : content) std::ranges::fill(tensor.bytes, std::byte{7});
  write("dcp", RanksLayout{2, 0}, "/other");
  for (const char name : {'a', 'b', 'c', 'd'})
    std::ranges::fill(content[std::string(1, name)].bytes, std::byte(name - 32));
  for (const char* damage : {"", "\x80\x04", "no pickle"}) {
    remove("/c/.metadata");
    if (*damage != 0) put("/c/.metadata", damage);
    repair(0, {"--like", "/other"});
    EXPECT_THAT(lost(), IsEmpty());
    EXPECT_THAT(why_repaired(), HasSubstr("of 8 items are those of 'other'"));
    expect_saved({"a", "b", "c", "d"});
    remove("/d");
  }
}

TEST_F(Dcp, TakesNoNamesFromASaveWithoutMetadataOfAllRanks) {
  write("dcp", RanksLayout{2, 0}, "/other");
  const std::string metadata = file("/other/.metadata");
  remove("/c/.metadata");
  remove("/other/.metadata");
  repair(3, {"--like", "/other"});
  EXPECT_EQ(result.at("file"), "/other/.metadata");
  EXPECT_THAT(world.err, HasSubstr("an unfinished save has no .metadata"));
  for (const char* name : {"/other/__0.metadata", "/other/__1.metadata"}) put(name, metadata);
  repair(8, {"--like", "/other"});
  EXPECT_THAT(world.err, HasSubstr("each of its ranks has its own metadata"));
}

TEST_F(Dcp, DoesNotReplaceTheCheckpointThatNamesItsTensors) {
  write("dcp", RanksLayout{2, 0}, "/other");
  remove("/c/.metadata");
  EXPECT_EQ(world.run({"repair", "/c", "-o", "/other", "--like", "/other", "--force"}), 5) << world.err;
}

TEST_F(Dcp, WithoutMetadataAndWithDamagedItemsNamesThoseThatAreLeft) {
  write("dcp", RanksLayout{2, 0}, "/other");
  remove("/c/.metadata");
  // All of item b but its size is gone, and the last item is cut in its elements.
  std::string text = file("/c/__0_0.distcp");
  const std::size_t begin = text.find("PK\x03\x04", text.find("PK\x05\x06")), end = text.find("PK\x05\x06", begin) + 22;
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end), '\0');
  put("/c/__0_0.distcp", text.substr(0, text.find("DDD") + 9));
  repair(0, {"--like", "/other"});
  EXPECT_THAT(lost(), ElementsAre("b", "d"));
  expect_saved({"a", "c"});
}

// ---- Files in the place of others

/// Halves of a to e are on ranks 0 and 1, and those of a and e have one size; only rank 0 has `small`, last.
struct ExchangedFiles : Repair {
  ExchangedFiles() {
    content["e"] = filled(DType::kFloat32, {64}, 'E');
    content["small"] = filled(DType::kUint8, {1}, 's');
    for (auto& [name, tensor] : content) {
      for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] ^= static_cast<std::byte>(i / 8);
    }
    write("dcp", RanksLayout{2, 0});
  }
  std::string of_rank(int rank) const { return file("/c/__" + std::to_string(rank) + "_0.distcp"); }
  void expect_only_small() {
    repair();
    EXPECT_THAT(lost(), ElementsAre("a", "b", "c", "d", "e"));
    expect_saved({"small"});
  }
};

TEST_F(ExchangedFiles, ACopyOfAnotherRanksFileGivesNoItemThatFits) {
  put("/c/__1_0.distcp", of_rank(0));
  expect_only_small();
  EXPECT_THAT(result.at("lost")[0].at("why").dump(), HasSubstr("the file belongs to another rank or save"));
}

TEST_F(ExchangedFiles, ThatWereSwappedGiveNothing) {
  const std::string first = of_rank(0);
  put("/c/__0_0.distcp", of_rank(1));
  put("/c/__1_0.distcp", first);
  repair(4);
}

TEST_F(ExchangedFiles, WithFewerItemsAllOfWhichFitGiveNothing) {
  const std::string whole = of_rank(1);
  put("/c/__1_0.distcp", whole.substr(0, whole.find("PK\x05\x06") + 22));  // Only the half of a.
  expect_only_small();
}

TEST_F(ExchangedFiles, WithMoreItemsAllOfWhichFitGiveNothing) {
  const std::string small = of_rank(0);
  put("/c/__1_0.distcp", of_rank(1) + small.substr(small.rfind("PK\x05\x06", small.size() - 23) + 22));
  expect_only_small();
}

TEST_F(ExchangedFiles, AreNotNamedByAnotherSaveEither) {
  write("dcp", RanksLayout{2, 0}, "/other");
  put("/c/__1_0.distcp", of_rank(0));
  remove("/c/.metadata");
  repair(0, {"--like", "/other"});
  expect_saved({"small"});
}

/// Their borders are those of .metadata, as the numbers of elements are the same.
TEST_F(ExchangedFiles, WithBoxesOfOtherShapesGiveNothing) {
  Content of_other = content;
  for (auto& [name, tensor] : of_other) tensor = filled(DType::kUint8, {8, 4}, 'x');
  std::swap(content, of_other);
  write("dcp", WholeLayout{}, "/e");
  content.at("c") = filled(DType::kUint8, {4, 8}, 'y');
  write("dcp", WholeLayout{}, "/other");
  put("/e/__0_0.distcp", file("/other/__0_0.distcp"));
  repair(4, {}, "/e");
}

/// Halves of a and b are on ranks 0 and 1, of one size each, so that only elements distinguish the files.
struct EvenFiles : Repair {
  EvenFiles() {
    content = {{"a", filled(DType::kUint8, {40, 3}, 'A')}, {"b", filled(DType::kFloat32, {64}, 'B')}};
    content["small"] = filled(DType::kUint8, {1}, 's');
  }
  void write_numbered() {
    for (auto& [name, tensor] : content) {
      for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::byte>(i);
    }
    write("dcp", RanksLayout{2, 0});
  }
  void copy() { put("/c/__1_0.distcp", file("/c/__0_0.distcp")); }
  int run(std::vector<std::string> line) {
    world.out.clear();
    world.err.clear();
    return world.run(std::move(line));
  }
};
constexpr std::string_view kSame = "__0_0.distcp and __1_0.distcp contain the same elements";

TEST_F(EvenFiles, OneOfWhichIsACopyAreToldByReadersAndGivenUpByRepair) {
  content.erase("small");  // Prevents any other check from detecting it.
  write_numbered();
  copy();
  EXPECT_EQ(run({"gather", "/c", "-o", "/g"}), 0);
  EXPECT_THAT(world.err, HasSubstr(kSame));
  EXPECT_EQ(run({"verify", "/c"}), 0);
  EXPECT_THAT(world.out + world.err, HasSubstr(kSame));
  EXPECT_EQ(run({"repair", "/c", "-o", "/d"}), 4);
}

TEST_F(EvenFiles, WithATensorThatLiesInOneFileOnlyAreToldToo) {
  write_numbered();
  copy();
  EXPECT_EQ(run({"gather", "/c", "-o", "/g"}), 0);
  EXPECT_THAT(world.err, HasSubstr(kSame));
}

/// Content of only one of the files proves nothing, even at its start.
TEST_F(EvenFiles, ThatBeginWithTensorsOfTheirOwnAreToldToo) {
  content.erase("small");
  content["0"] = filled(DType::kUint8, {5}, '0');
  content["1"] = filled(DType::kUint8, {5}, '1');
  write_numbered();
  const std::unique_ptr<Reader> reader = open_checkpoint(*world.fs, "/c");
  Catalog like = reader->catalog();
  for (Tensor& tensor : like.tensors) {  // Each of the two whole on a separate rank.
    if (tensor.name != "0" && tensor.name != "1") continue;
    Chunk& first = like.chunks[tensor.first_chunk];
    first.sizes = tensor.shape;
    tensor.chunk_count = 1;
    like.stored[first.stored].rank = tensor.name == "0" ? 0 : 1;
  }
  remove("/c");
  write("dcp", LikeLayout{&like});
  copy();
  EXPECT_EQ(run({"gather", "/c", "-o", "/g"}), 0) << world.err;
  EXPECT_THAT(world.err, HasSubstr(kSame));
}

TEST_F(EvenFiles, ThatHoldMoreThanTheFileInWhosePlaceTheyLieAreToldToo) {
  content = {{"a", filled(DType::kUint8, {3, 40}, 'A')}, {"b", filled(DType::kUint8, {2, 40}, 'B')}};
  for (auto& [name, tensor] : content) {
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::byte>(i);
  }
  write("dcp", RanksLayout{3, 0});
  put("/c/__2_0.distcp", file("/c/__0_0.distcp"));
  EXPECT_EQ(run({"gather", "/c", "-o", "/g"}), 0);
  EXPECT_THAT(world.err, HasSubstr("__0_0.distcp and __2_0.distcp contain the same elements"));
}

TEST_F(EvenFiles, ThatDifferOrHoldOneValueAreNotCopies) {
  content.erase("small");  // Files of one size.
  for (const bool is_numbered : {true, false}) {
    if (is_numbered) write_numbered();
    if (!is_numbered) write("dcp", RanksLayout{2, 0}, "/zeros");
    EXPECT_EQ(run({"gather", is_numbered ? "/c" : "/zeros", "-o", is_numbered ? "/g" : "/h"}), 0);
    EXPECT_THAT(world.err, ::testing::Not(HasSubstr("the same elements")));
    for (auto& [name, tensor] : content) std::ranges::fill(tensor.bytes, std::byte{0});
  }
}

/// Tensors of one dtype and shape, distinguished only by their order.
struct AlikeItems : Repair {
  AlikeItems() {
    content.clear();
    for (const char name : {'a', 'b', 'c', 'd'}) {
      content[std::string(1, name)] = filled(DType::kUint8, {300}, static_cast<char>(name - 32));
    }
    write("dcp");
    write("dcp", WholeLayout{}, "/other");
    remove("/c/.metadata");
  }
  /// Start and end of item `nth`.
  std::pair<std::size_t, std::size_t> item(int nth) const {
    const std::string text = file("/c/__0_0.distcp");
    std::size_t begin = 0, end = text.find("PK\x05\x06") + 22;
    for (; nth > 0; --nth) begin = end, end = text.find("PK\x05\x06", begin) + 22;
    return {begin, end};
  }
  void expect_named(const std::vector<std::string>& names) {
    repair(0, {"--like", "/other"});
    expect_saved(names);
  }
};

TEST_F(AlikeItems, AreToldByTheirOrder) { expect_named({"a", "b", "c", "d"}); }

TEST_F(AlikeItems, WhoseBorderIsDamagedAreNotTakenForOneAnother) {
  std::string text = file("/c/__0_0.distcp");
  const std::size_t end_of_b = item(1).second;
  text[end_of_b - 22] = 'Q';  // Without its end record b and c look like one zip.
  put("/c/__0_0.distcp", text);
  repair(0, {"--like", "/other"});
  const Content saved = read_content(*open_checkpoint(*world.fs, "/d"));
  EXPECT_EQ(saved.size(), 4U);
  for (const auto& [name, tensor] : saved) EXPECT_TRUE(tensor == content.at(name)) << name;
}

TEST_F(AlikeItems, BehindBytesThatAreMissingCannotBeNamed) {
  std::string text = file("/c/__0_0.distcp");
  const auto [begin, end] = item(1);
  text.erase(begin + 50, end - begin - 100);
  put("/c/__0_0.distcp", text);
  expect_named({"a"});
  EXPECT_THAT(lost(), ElementsAre("b", "c", "d"));
  EXPECT_EQ(lost_without_name(), 2U);
  EXPECT_THAT(result.at("lost").dump(), HasSubstr("is unknown: damaged bytes precede it"));
}

TEST_F(AlikeItems, OfWhichOneIsLostAtAnyByteAreNeverMisnamed) {
  const std::string whole = file("/c/__0_0.distcp");
  for (std::size_t at = 0; at < whole.size(); at += 61) {
    std::string text = whole;
    for (std::size_t i = at; i < std::min(at + 40, text.size()); ++i) text[i] = static_cast<char>(text[i] ^ 0x55);
    put("/c/__0_0.distcp", text);
    const int code = world.run({"repair", "/c", "-o", "/d", "--like", "/other"});
    ASSERT_TRUE(code == 0 || code == 4) << at << world.err;
    if (code != 0) continue;
    const Content saved = read_content(*open_checkpoint(*world.fs, "/d"));
    for (const auto& [name, tensor] : saved) ASSERT_TRUE(tensor == content.at(name)) << at << name;
    remove("/d");
  }
}

TEST_F(AlikeItems, BesideAFileOfAnEarlierSaveAreNamed) {
  put("/c/__1_0.distcp", file("/c/__0_0.distcp"));
  const auto [begin, end] = item(1);
  for (const bool is_damaged : {false, true}) {
    if (is_damaged) put("/c/__0_0.distcp", file("/c/__0_0.distcp").replace(begin, end - begin, end - begin, '\0'));
    repair(0, {"--like", "/other"});
    EXPECT_EQ(lost_without_name(), 0U);
    EXPECT_THAT(world.err, HasSubstr(".metadata lists no item in these files: '__1_0.distcp'"));
    if (!is_damaged) expect_saved({"a", "b", "c", "d"});
    if (is_damaged) expect_saved({"a", "c", "d"});
    remove("/d");
  }
}

/// A save by more ranks has fewer items in each file, so its files do not contain those of `like`.
TEST_F(AlikeItems, BesideAFurtherFileThatMayBelongToTheSaveAreNotNamed) {
  const std::string whole = file("/c/__0_0.distcp");
  const std::size_t half = item(2).first;
  put("/c/__0_0.distcp", whole.substr(0, half));
  put("/c/__1_0.distcp", whole.substr(half));
  repair(4, {"--like", "/other"});
}

TEST_F(AlikeItems, OfAnotherJobAreRefused) {
  content = {{"x", filled(DType::kUint8, {77}, 'x')}};
  write("dcp", WholeLayout{}, "/third");
  repair(4, {"--like", "/third"});
  EXPECT_THAT(world.err, HasSubstr("this one has different items"));
}

}  // namespace
}  // namespace shard::testing
