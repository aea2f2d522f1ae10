// Reads checkpoints of torch 2.11 from four ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libshard/core/value.h"
#include "tests/formats/dcp_golden.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using test::GoldenDcp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int64_t> list(Dims dims) { return {dims.begin(), dims.end()}; }

std::vector<std::string> object_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const Object& object : catalog.objects) names.emplace_back(object.name);
  return names;
}

const Object& object_named(const Catalog& catalog, std::string_view name) {
  for (const Object& object : catalog.objects) {
    if (object.name == name) return object;
  }
  throw std::logic_error("no such object");
}

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[static_cast<int>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<int>(byte) & 15];
  }
  return text;
}

TEST(DcpReader, EveryElementIsWhatTorchLoads) {
  std::ifstream file(std::string(SHARD_TEST_DATA) + "/dcp/expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  GoldenDcp golden("four_ranks");
  const testing::Content found = testing::read_content(*golden.open());
  EXPECT_EQ(found.size(), expected.size() + 1);
  for (const auto& [name, tensor] : found) {
    if (name == "tuple_of_tensors.0") continue;  // torch lists it as an object.
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_EQ(dtype_name(tensor.dtype), expected[name]["dtype"].get<std::string>()) << name;
    EXPECT_EQ(tensor.shape, expected[name]["shape"].get<std::vector<std::int64_t>>()) << name;
    EXPECT_EQ(hex(tensor.bytes), expected[name]["bytes"].get<std::string>()) << name;
  }
}

TEST(DcpReader, DetectsItsFolders) {
  GoldenDcp golden("one_rank");
  golden.open();
  EXPECT_TRUE(kDcpFormat.detect({&golden.fs(), {"/c"}}));
  EXPECT_FALSE(kDcpFormat.detect({&golden.fs(), {"/c/.metadata"}}));
  EXPECT_FALSE(kDcpFormat.detect({&golden.fs(), {"/"}}));
}

TEST(DcpReader, NamesAndShapesNeedTheMetadataOnly) {
  GoldenDcp golden("four_ranks");
  golden.metadata_files_only();
  OpenOptions options;
  options.metadata_only = true;
  const std::unique_ptr<Reader> reader = golden.open(options);
  EXPECT_EQ(reader->catalog().tensors.size(), 24u);
  for (const Storage& storage : reader->catalog().storages) EXPECT_EQ(storage.offset, -1);
}

TEST(DcpReader, ChunksOfUnevenRowsHaveTheRanksThatWroteThem) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  const Catalog& catalog = reader->catalog();
  const std::span<const Chunk> chunks = catalog.chunks_of(*catalog.find("model.rows"));
  ASSERT_EQ(chunks.size(), 4u);
  const std::vector<std::int64_t> begins{0, 5, 10, 15}, counts{5, 5, 5, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(list(chunks[i].offsets), ElementsAre(begins[i], 0));
    EXPECT_THAT(list(chunks[i].sizes), ElementsAre(counts[i], 6));
    EXPECT_EQ(catalog.stored[chunks[i].stored].rank, static_cast<int>(i));
  }
}

TEST(DcpReader, AnEmptyShardIsAChunk) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  const Catalog& catalog = reader->catalog();
  const std::span<const Chunk> chunks = catalog.chunks_of(*catalog.find("model.few_rows"));
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_THAT(list(chunks[3].offsets), ElementsAre(5, 0));
  EXPECT_THAT(list(chunks[3].sizes), ElementsAre(0, 6));
}

TEST(DcpReader, LocatedPlacesCountFromTheFilesBegin) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open_located();
  const Catalog& catalog = reader->catalog();
  const auto place = [&](std::string_view name, std::size_t chunk) {
    return catalog.storages[catalog.stored[catalog.chunks_of(*catalog.find(name))[chunk].stored].storage];
  };
  EXPECT_EQ(place("model.rows", 0).offset, 704);
  EXPECT_EQ(place("model.rows", 0).bytes, 120);
  EXPECT_EQ(place("model.columns", 0).offset, 3922);  // The second item's data is not aligned in the file.
  EXPECT_EQ(catalog.files[place("model.columns", 2).file].path, "__2_0.distcp");
}

TEST(DcpReader, StridesComeFromTheItem) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open_located();
  const Catalog& catalog = reader->catalog();
  EXPECT_THAT(list(catalog.chunks_of(*catalog.find("plain.transposed"))[0].strides), ElementsAre(1, 3));
}

TEST(DcpReader, RanksAreCountedFromTheFileNames) {
  GoldenDcp four("four_ranks"), one("one_rank");
  EXPECT_EQ(four.open()->catalog().world_size, 4);
  EXPECT_EQ(one.open()->catalog().world_size, 1);
}

TEST(DcpReader, FilesAreTheMetadataAndThenByRank) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  std::vector<std::string> paths;
  for (const File& file : reader->catalog().files) paths.push_back(file.path);
  EXPECT_THAT(paths, ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"));
}

TEST(DcpReader, RequiresGradIsKept) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  const Catalog& catalog = reader->catalog();
  EXPECT_TRUE(catalog.stored[catalog.chunks_of(*catalog.find("plain.parameter"))[0].stored].requires_grad);
  EXPECT_FALSE(catalog.stored[catalog.chunks_of(*catalog.find("model.rows"))[0].stored].requires_grad);
}

TEST(DcpReader, PathsComeFromThePlanner) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  const Path path = reader->catalog().find("list_of_tensors.2.0")->path;
  ASSERT_EQ(path.size(), 3u);
  EXPECT_EQ(path[0].key(), "list_of_tensors");
  EXPECT_TRUE(path[1].is_index && path[2].is_index);
  EXPECT_EQ(path[1].index, 2);
  const Path step = reader->catalog().find("optimizer.state.0.step")->path;
  EXPECT_FALSE(step[2].is_index);
  EXPECT_EQ(step[2].key(), "0");
}

TEST(DcpReader, ObjectsAreOneEntryUntilTheyAreLoaded) {
  GoldenDcp golden("one_rank");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(object_names(reader->catalog()), ElementsAre("step"));
  EXPECT_EQ(reader->catalog().objects[0].value, nullptr);
}

TEST(DcpReader, LoadedObjectsAreListedLeafByLeaf) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  reader->load_objects();
  EXPECT_THAT(object_names(reader->catalog()),
              ElementsAre("list_of_tensors.1", "name", "nothing", "optimizer.param_groups.0.betas.0",
                          "optimizer.param_groups.0.betas.1", "optimizer.param_groups.0.lr",
                          "optimizer.param_groups.0.params.0", "optimizer.param_groups.0.params.1",
                          "optimizer.param_groups.1.lr", "optimizer.param_groups.1.params", "plain_list.0",
                          "plain_list.1", "plain_list.2", "rate", "step", "tuple_of_tensors.1", "yes"));
  EXPECT_EQ(object_named(reader->catalog(), "name").value->text(), "golden");
  EXPECT_EQ(object_named(reader->catalog(), "rate").value->real, 0.25);
  EXPECT_EQ(object_named(reader->catalog(), "optimizer.param_groups.0.params.1").value->number, 1);
}

TEST(DcpReader, TheTreeKeepsListsAndTuples) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  reader->load_objects();
  const Value& root = *reader->catalog().root;
  const Value& groups = *find_key(*find_key(root, "optimizer"), "param_groups");
  EXPECT_EQ(groups.kind, ValueKind::kList);
  EXPECT_EQ(find_key(*groups.items()[0], "betas")->kind, ValueKind::kTuple);
  EXPECT_EQ(find_key(root, "list_of_tensors")->items()[0]->kind, ValueKind::kTensor);
}

// Other torch versions, as far as their pickles differ (formats/dcp/README.md).

TEST(DcpReader, OldModuleNamesAreRead) {
  GoldenDcp golden("one_rank");
  golden.respell("torch.distributed.checkpoint.metadata", "torch.distributed._shard.checkpoint.metadata");
  golden.respell("torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem");
  const std::unique_ptr<Reader> reader = golden.open_located();
  EXPECT_EQ(reader->catalog().tensors.size(), 1u);
  EXPECT_EQ(reader->catalog().format_version, "torch<=1.13");
}

TEST(DcpReader, TheClassesSayWhichTorchWroteIt) {
  GoldenDcp golden("one_rank");
  EXPECT_EQ(golden.open()->catalog().format_version, "torch>=2.3");
}

TEST(DcpReader, SixTensorPropertiesAreRead) {
  GoldenDcp golden("one_rank");
  golden.replace(".metadata",
                 "\x89t\x94"
                 "b",
                 "\x89Nt\x94"
                 "b");  // NEWFALSE (NONE) TUPLE MEMOIZE BUILD
  EXPECT_EQ(golden.open_located()->catalog().tensors.size(), 1u);
}

TEST(DcpReader, WithoutLengthsItemsReachToTheNextOne) {
  GoldenDcp golden("one_rank");
  golden.respell("length", "lengtx");
  const std::unique_ptr<Reader> reader = golden.open_located();
  EXPECT_EQ(reader->catalog().storages[reader->catalog().stored[0].storage].bytes, 48);
}

TEST(DcpReader, WithoutPlannerDataNamesAreNotNested) {
  GoldenDcp golden("four_ranks");
  golden.respell("planner_data", "planner_datx");
  EXPECT_THAT(golden.open()->catalog().find("model.rows")->path, IsEmpty());
}

TEST(DcpReader, AnUnnamedFileIsAWarning) {
  GoldenDcp golden("one_rank");
  golden.files["__7_0.distcp"] = "x";
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(reader->catalog().warnings, ElementsAre(HasSubstr("__7_0.distcp")));
}

}  // namespace
}  // namespace shard
