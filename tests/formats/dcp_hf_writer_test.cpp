#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using testing::Content;
using testing::content_reader;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kFirst = "/d/out/shard-00001-model-00001-of-00001.safetensors";

class DcpHfWriter : public ::testing::Test {
 protected:
  DcpHfWriter() { fs->make_folder("/d"); }

  CopyResult write(const Content& content, const Layout& layout) {
    return testing::write_checkpoint(*fs, *content_reader(content),
                                     {.format = "dcp-hf", .destination = "/d/out", .layout = layout});
  }
  std::vector<std::string> files() const { return fs->list("/d/out"); }
  /// The header's text of a written file.
  std::string header(const std::string& path) const {
    const std::string bytes = test::as_text(state->content(path));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    return bytes.substr(sizeof(length), length);
  }
  testing::ContentTensor bytes(std::vector<std::int64_t> shape) {
    return testing::random_tensor(random, DType::kUint8, std::move(shape));
  }

  std::mt19937_64 random{1};
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(DcpHfWriter, WritesTorchsKeysAndItsOwn) {
  write({{"b", bytes({3})}, {"w", bytes({5, 2})}}, RanksLayout{2, 0});
  EXPECT_THAT(files(), ElementsAre("shard-00001-model-00001-of-00001.safetensors",
                                   "shard-00002-model-00001-of-00001.safetensors"));
  EXPECT_THAT(
      header("/d/out/shard-00002-model-00001-of-00001.safetensors"),
      StartsWith(
          R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"b\": {\"saved_offsets\": [2]}, \"w\": {\"saved_offsets\": [3, 0]}}",)"
          R"("DCP_VERSION":"1.0","format":"pt","shardctl.ranks":"0-1",)"
          R"("shardctl.shapes":"{\"b\": [3], \"w\": [5, 2]}","shardctl.world_size":"2"},)"
          R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[2,2],"data_offsets":[1,5]}})"));
}

TEST_F(DcpHfWriter, PadsTheHeader) {
  write({{"b", bytes({3})}}, RanksLayout{1, 0});
  EXPECT_EQ(header(kFirst).size() % 8, 0U);
}

TEST_F(DcpHfWriter, RecordsNoShapeOfAnUncutTensorAndPutsItOnRankZero) {
  write({{"b", bytes({})}, {"w", bytes({4})}}, RanksLayout{2, 0});
  EXPECT_THAT(header(kFirst), HasSubstr(R"(\"b\": {\"saved_offsets\": []})"));
  EXPECT_THAT(header(kFirst), HasSubstr(R"("shardctl.shapes":"{\"w\": [4]}")"));
  EXPECT_THAT(header("/d/out/shard-00002-model-00001-of-00001.safetensors"), Not(HasSubstr("\"b\"")));
}

TEST_F(DcpHfWriter, ARankWithoutElementsHasNoFileButCountsInTheWorld) {
  write({{"w", bytes({5})}}, RanksLayout{4, 0});
  EXPECT_EQ(files().size(), 3U);
  EXPECT_THAT(header(kFirst), HasSubstr(R"("shardctl.ranks":"0-2")"));
  EXPECT_THAT(header(kFirst), HasSubstr(R"("shardctl.world_size":"4")"));
}

TEST_F(DcpHfWriter, AHoleInTheRanksIsRecordedAndReadBack) {
  // Rank = 2 * a + b: only ranks 0 and 2 store the replicas along b.
  const Content content = {{"w", bytes({4})}};
  const MeshLayout mesh{
      {{"a", 2}, {"b", 2}}, {{"w", {parse_placement("S(0)"), parse_placement("R")}, {}}}, match_first_rule};
  write(content, mesh);
  EXPECT_THAT(files(), ElementsAre("shard-00001-model-00001-of-00001.safetensors",
                                   "shard-00003-model-00001-of-00001.safetensors"));
  EXPECT_THAT(header(kFirst), HasSubstr(R"("shardctl.ranks":"0,2")"));
  EXPECT_EQ(testing::read_content(*testing::open_checkpoint(*fs, "/d/out")), content);
}

TEST_F(DcpHfWriter, SeveralBoxesOfATensorOnARankAreRefused) {
  const MeshLayout mesh{
      {{"a", 2}, {"b", 2}}, {{"w", {parse_placement("_S(0,2)"), parse_placement("R")}, {}}}, match_first_rule};
  const Error error = test::error_of([&] { write({{"w", bytes({8})}}, mesh); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.tensor(), "w");
  EXPECT_EQ(error.rank(), 0);
  EXPECT_THAT(error.what(), HasSubstr("several boxes of tensor 'w'"));
}

TEST_F(DcpHfWriter, WholeTensorsGoToOneRankEach) {
  const Content content = {{"a", bytes({4})}, {"b", bytes({4})}};
  write(content, ShardsLayout{2});
  EXPECT_THAT(header(kFirst), HasSubstr(R"("shardctl.shapes":"{}")"));
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(testing::read_content(*testing::open_checkpoint(*fs, "/d/out")), content);
}

TEST_F(DcpHfWriter, NoTensorsAreOneFile) {
  write({}, RanksLayout{3, 0});
  EXPECT_EQ(files().size(), 1U);
  EXPECT_TRUE(testing::read_content(*testing::open_checkpoint(*fs, "/d/out")).empty());
}

TEST_F(DcpHfWriter, RewritingDoesNotKeepTheOldRecords) {
  const Content content = {{"w", bytes({6, 4})}};
  write(content, RanksLayout{3, 0});
  testing::write_checkpoint(*fs, *testing::open_checkpoint(*fs, "/d/out"),
                            {.format = "dcp-hf", .destination = "/d/again", .layout = RanksLayout{2, 1}});
  EXPECT_THAT(header("/d/again/shard-00001-model-00001-of-00001.safetensors"),
              HasSubstr(R"("shardctl.world_size":"2")"));
  EXPECT_EQ(testing::read_content(*testing::open_checkpoint(*fs, "/d/again")), content);
}

TEST_F(DcpHfWriter, OneFileIsNoDestination) {
  test::expect_error(ErrorCode::kInvalidArgument, "needs a folder",
                     [] { writer_of(format_named("dcp-hf"), {.single_file = true}); });
}

TEST_F(DcpHfWriter, DtypesThatSafetensorsLacksAreRefused) {
  const Error error = test::error_of([&] {
    write({{"z", testing::random_tensor(random, DType::kComplex128, {2})}}, RanksLayout{1, 0});
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.tensor(), "z");
}

}  // namespace
}  // namespace shard
