// One file per rank: replicas, boxes, lost ranks. Shards of dcp-hf.
#include "tests/repair/damage.h"
#include "tests/support/safetensors_file.h"

namespace shard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Ranks : Repair {
  /// The content as /m.safetensors, cut by these options into /c.
  void split(std::vector<std::string> options) {
    write("safetensors", WholeLayout{}, "/m.safetensors");
    std::vector<std::string> line{"split", "/m.safetensors", "-o", "/c"};
    line.insert(line.end(), options.begin(), options.end());
    ASSERT_EQ(world.run(line), 0) << world.err;
  }
  static std::string rank_file(int rank, int of = 2) {
    return "/c/rank-0000" + std::to_string(rank) + "-of-0000" + std::to_string(of) + ".pt";
  }
};

TEST_F(Ranks, ADamagedReplicaIsTakenFromAnotherRank) {
  split({"--to", "torch-ranks", "--mesh", "dp=2,tp=2", "--place", "**=R,S(0)"});
  flip(rank_file(0, 4), "AAA", 10);
  repair();
  EXPECT_THAT(lost(), IsEmpty());
  EXPECT_THAT(result.at("repaired").dump(), HasSubstr("1 damaged box was taken from a replica"));
  expect_saved({"a", "b", "c", "d"});
  flip(rank_file(2, 4), "AAA", 20);
  repair(0, {}, "/c", "/e");
  EXPECT_THAT(lost(), ElementsAre("a"));
  expect_saved({"b", "c", "d"}, "/e");
}

TEST_F(Ranks, ADamagedBoxIsLostWithItsTensor) {
  split({"--to", "torch-ranks", "--ranks", "2"});
  flip(rank_file(1), "CCC", 10);
  repair();
  EXPECT_THAT(lost(), ElementsAre("c"));
  EXPECT_EQ(result.at("lost")[0].at("boxes"), nlohmann::json::parse(R"([{"offsets":[151],"sizes":[151]}])"));
  expect_saved({"a", "b", "d"});
}

TEST_F(Ranks, APlainTensorIsTakenFromARankWhereItIsWhole) {
  content["plain"] = filled(DType::kInt64, {}, 'p');
  split({"--to", "torch-ranks", "--ranks", "2"});
  flip(rank_file(0), "pppppppp", 3);
  repair();
  EXPECT_THAT(lost(), IsEmpty());
  EXPECT_THAT(result.at("repaired").dump(), HasSubstr("1 damaged plain tensor was taken from another rank"));
  expect_saved({"a", "b", "c", "d", "plain"});
}

TEST_F(Ranks, WithoutARankWhatItHeldAloneIsLost) {
  content["plain"] = filled(DType::kInt64, {}, 'p');
  split({"--to", "torch-ranks", "--ranks", "3"});
  cut(rank_file(1, 3), 50);
  repair(0, {"--to", "safetensors"});
  EXPECT_THAT(lost(), ElementsAre("a", "b", "c", "d"));
  expect_saved({"plain"});
}

TEST_F(Ranks, OfExchangedPlainFilesNoSliceIsTrusted) {
  content["plain"] = filled(DType::kInt64, {}, 'p');
  split({"--to", "torch-ranks", "--ranks", "2", "--as", "plain"});
  const std::string first = file(rank_file(0)), second = file(rank_file(1));
  put(rank_file(0), second);
  put(rank_file(1), first);
  repair(0, {"--to", "safetensors"});
  EXPECT_THAT(lost(), ElementsAre("a", "b", "c", "d"));  // The slices of a and c have one size on both ranks.
  EXPECT_THAT(std::string(result.at("lost")[0].at("why")), HasSubstr("a file is of a different rank or save"));
  expect_saved({"plain"});
}

/// Plain slices of equal sizes on all ranks, so that only elements and recorded names distinguish the files.
struct EvenRanks : Ranks {
  EvenRanks() {
    content = {{"a", filled(DType::kUint8, {40, 3}, 'A')}, {"b", filled(DType::kFloat32, {64}, 'B')}};
    for (auto& [name, tensor] : content) {
      for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::byte>(i);
    }
    content["plain"] = filled(DType::kInt64, {}, 'p');
  }
  int run(std::vector<std::string> line) {
    world.out.clear();
    world.err.clear();
    return world.run(std::move(line));
  }
  /// Copies rank 0's file over that of `rank`. Without `has_name`, the copy no longer records its name.
  void copy_over(int rank, bool has_name, int of = 2) {
    std::string text = file(rank_file(0, of));
    const std::string name = "rank-00000";
    for (std::size_t at = text.find(name); at != text.npos && !has_name; at = text.find(name, at)) {
      text.replace(at, name.size(), "some-other");
    }
    put(rank_file(rank, of), text);
  }
  void expect_only_plain() {
    repair(0, {"--to", "safetensors"});
    EXPECT_THAT(lost(), ElementsAre("a", "b"));
    expect_saved({"plain"});
  }
};

TEST_F(EvenRanks, ACopyIsFoundByTheNameThatItRecords) {
  split({"--to", "torch-ranks", "--ranks", "2", "--as", "plain"});
  copy_over(1, true);
  EXPECT_EQ(run({"verify", "/c"}), 1);
  EXPECT_THAT(world.out,
              HasSubstr("rank_mismatch rank-00001-of-00002.pt: the file was saved under another rank's name"));
  EXPECT_EQ(run({"gather", "/c", "-o", "/g.safetensors"}), 4);
  expect_only_plain();
}

TEST_F(EvenRanks, ACopyWithoutANameIsFoundByItsElements) {
  split({"--to", "torch-ranks", "--ranks", "2", "--as", "plain"});
  copy_over(1, false);
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"verify", "/c"}, std::vector<std::string>{"gather", "/c", "-o", "/g.safetensors"}}) {
    EXPECT_EQ(run(line), 0);
    EXPECT_THAT(world.out + world.err,
                HasSubstr("rank-00000-of-00002.pt and rank-00001-of-00002.pt contain the same elements"));
  }
  expect_only_plain();
}

TEST_F(EvenRanks, ACopyInThePlaceOfAReplicaIsNone) {
  split({"--to", "torch-ranks", "--mesh", "dp=2,tp=2", "--place", "**=R,S(0)", "--as", "plain"});
  for (const bool has_name : {true, false}) {
    copy_over(2, has_name, 4);
    EXPECT_EQ(run({"verify", "/c"}), 0) << world.out;
    EXPECT_THAT(world.out, HasSubstr("/c: good"));
    EXPECT_THAT(world.out, ::testing::Not(HasSubstr("warning")));
  }
  copy_over(1, false, 4);
  EXPECT_EQ(run({"verify", "/c"}), 1);  // It differs from its replica, too.
  EXPECT_THAT(world.out, HasSubstr("contain the same elements"));
}

TEST_F(Ranks, ACutFileKeepsTheTensorsBeforeTheCut) {
  split({"--to", "torch-ranks", "--ranks", "2"});
  cut(rank_file(1), file(rank_file(1)).find("CCC"));
  repair();
  EXPECT_THAT(lost(), ElementsAre("c", "d"));
  expect_saved({"a", "b"});
}

TEST_F(Ranks, ShardsOfDcpHfThatAreCutKeepThePiecesBeforeTheCut) {
  split({"--to", "dcp-hf", "--ranks", "2"});
  const std::string shard = "/c/shard-00002-model-00001-of-00001.safetensors";
  cut(shard, file(shard).find("DDD") + 10);
  repair();
  EXPECT_THAT(lost(), ElementsAre("d"));
  expect_saved({"a", "b", "c"});
}

TEST_F(Ranks, WithoutAShardOfDcpHfTensorsWithAPieceThereAreLost) {
  content["first"] = filled(DType::kUint8, {1}, 'f');  // Only on rank 0.
  split({"--to", "dcp-hf", "--ranks", "2"});
  remove("/c/shard-00002-model-00001-of-00001.safetensors");
  repair();
  EXPECT_THAT(lost(), ElementsAre("a", "b", "c", "d"));
  expect_saved({"first"});
}

/// A shard as torch writes it, without whole shapes: the piece of "w" at [row, column], two rows of one byte.
std::string piece_of_torch(int row, int column) {
  const std::string place = "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
  return test::safetensors_file(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": )" + place +
                                    R"(}}","DCP_VERSION":"1.0","format":"pt"},)"
                                    R"("w":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]}})",
                                "12");
}

TEST_F(Ranks, WithACopyInThePlaceOfAShardOfTorchsDcpHfNoShapeIsCertain) {
  put("/c/shard-00001-model-00001-of-00001.safetensors", piece_of_torch(0, 0));
  put("/c/shard-00002-model-00001-of-00001.safetensors", piece_of_torch(0, 0));
  repair(4);
  EXPECT_THAT(world.err, HasSubstr("contain the same boxes"));
}

TEST_F(Ranks, WithAShardOfAnotherSaveOfTorchsDcpHfNoShapeIsCertain) {
  put("/c/shard-00001-model-00001-of-00001.safetensors", piece_of_torch(0, 0));
  put("/c/shard-00002-model-00001-of-00001.safetensors", piece_of_torch(1, 0));  // Overlaps rows 1 and 2.
  repair(4);
  EXPECT_THAT(world.err, HasSubstr("overlap at element [1, 0]"));
}

TEST_F(Ranks, WithARenamedShardOfTorchsDcpHfNoShapeIsCertain) {
  put("/c/shard-00001-model-00001-of-00001.safetensors", piece_of_torch(0, 0));
  put("/c/old-shard-00002-model-00001-of-00001.safetensors", piece_of_torch(2, 0));
  repair(4);
  EXPECT_THAT(world.err, HasSubstr("old-shard-00002-model-00001-of-00001.safetensors: the name does not contain"));
}

TEST_F(Ranks, WithoutTheLastShardOfTorchsDcpHfNoShapeIsCertain) {
  put("/c/shard-00001-model-00001-of-00001.safetensors", piece_of_torch(0, 0));
  put("/c/shard-00002-model-00001-of-00001.safetensors", piece_of_torch(0, 1));
  put("/c/shard-00003-model-00001-of-00001.safetensors", piece_of_torch(2, 0));  // [2, 1] was in the fourth one.
  repair(4);
  EXPECT_THAT(std::string(result.at("message")), HasSubstr("cannot find the shapes of the tensors"));
}

}  // namespace
}  // namespace shard::testing
