#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "formats/parts/pickle/pickle.h"
#include "formats/torch_ranks/dtensor_reader.h"
#include "formats/torch_ranks/sharded_value_maker.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/map/documents/layout_document.h"
#include "tests/formats/torch_files.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using test::expect_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch_ranks::as_sharded_tensor;
using torch_ranks::DTensorValue;
using torch_ranks::GroupNames;
using torch_ranks::ShardBox;
using torch_ranks::ShardedTensorValue;

MeshLayout mesh(std::string_view axes, const std::vector<std::string>& placements) {
  MeshLayout layout;
  layout.mesh = parse_mesh(axes);
  MeshLayout::Rule rule{"**", {}, {}};
  layout.matching = match_first_rule;
  for (const std::string& each : placements) rule.placements.push_back(parse_placement(each));
  layout.rules.push_back(rule);
  return layout;
}

/// The numbers 0, 1, 2, ... as int16.
ContentTensor counted(std::vector<std::int64_t> shape) {
  ContentTensor tensor{DType::kInt16, std::move(shape), {}};
  std::int64_t numel = 1;
  for (const std::int64_t n : tensor.shape) numel *= n;
  for (std::int64_t i = 0; i < numel; ++i) tensor.bytes.insert(tensor.bytes.end(), {std::byte(i), std::byte{0}});
  return tensor;
}

class TorchRanksWriter : public ::testing::Test {
 protected:
  TorchRanksWriter() { files_.fs().make_folder("/d"); }

  CopyResult write(const Content& content, const Layout& layout, RankFiles kind) {
    return write(*content_reader(content), layout, kind);
  }
  CopyResult write(Reader& reader, const Layout& layout, RankFiles kind) {
    return write_checkpoint(files_.fs(), reader,
                            {.format = "torch-ranks", .destination = "/d/out", .layout = layout, .rank_files = kind});
  }
  std::string record(const std::string& file, const std::string& name) {
    for (const NamedRecord& each : unpack(files_.content("/d/out/" + file))) {
      if (each.name == name) return each.content;
    }
    return "absent";
  }
  /// The value under a key of a file's pickle.
  const Value& value(const std::string& file, const std::string& key) {
    pickles_.push_back(record(file, "data.pkl"));
    pickle::LoadOptions options;
    options.file = file;
    options.allow = pickle::is_known_global;
    Value* root = pickle::load(arena_, std::as_bytes(std::span(pickles_.back())), options);
    return *find_key(*root, key);
  }
  ShardedTensorValue sharded(const std::string& file, const std::string& key) {
    return *as_sharded_tensor(arena_, value(file, key));
  }
  DTensorValue dtensor(const std::string& file, const std::string& key) {
    const auto integers = [&](const torch_save::TensorView& view) {
      const std::string bytes = record(file, "data/" + std::string(view.key));
      std::vector<std::int64_t> numbers;
      for (std::size_t i = 0; i < bytes.size(); i += 4) numbers.push_back(bytes[i]);
      return numbers;
    };
    return *torch_ranks::DTensorReader(arena_, integers).read(value(file, key));
  }
  static std::vector<std::string> texts(const std::vector<ShardBox>& boxes) {
    std::vector<std::string> all;
    for (const ShardBox& box : boxes) {
      all.push_back(to_string(box.sizes) + " at " + to_string(box.offsets) + " " + std::string(box.placement));
    }
    return all;
  }

  MemoryFiles files_;
  Arena arena_;
  std::deque<std::string> pickles_;
};

TEST_F(TorchRanksWriter, WritesAFileForEveryRank) {
  write({{"w", counted({2})}}, RanksLayout{3}, RankFiles::kShardedTensor);
  EXPECT_THAT(files_.fs().list("/d/out"),
              ElementsAre("rank-00000-of-00003.pt", "rank-00001-of-00003.pt", "rank-00002-of-00003.pt"));
}

TEST_F(TorchRanksWriter, HasUncutTensorsPlainInEveryFile) {
  write({{"s", counted({})}, {"w", counted({2})}}, RanksLayout{2}, RankFiles::kShardedTensor);
  EXPECT_EQ(files_.fs().list("/d/out").size(), 2U);
  for (const char* file : {"rank-00000-of-00002.pt", "rank-00001-of-00002.pt"}) {
    EXPECT_TRUE(torch_save::as_tensor(arena_, value(file, "s")).has_value());
    EXPECT_TRUE(torch_ranks::is_sharded(value(file, "w")));
  }
}

TEST_F(TorchRanksWriter, SaysWhoWroteAShardedTensorAndAllItsShards) {
  write({{"w", counted({3, 2})}}, RanksLayout{2}, RankFiles::kShardedTensor);
  const ShardedTensorValue tensor = sharded("rank-00001-of-00002.pt", "w");
  EXPECT_EQ(tensor.group, (torch_ranks::GroupState{1, 1, 2, 2}));
  EXPECT_EQ(to_string(tensor.shape), "[3, 2]");
  EXPECT_EQ(tensor.dtype, DType::kInt16);
  EXPECT_TRUE(tensor.spec.is_chunk);
  EXPECT_EQ(tensor.spec.dim, 0);
  EXPECT_THAT(texts(tensor.all), ElementsAre("[2, 2] at [0, 0] rank:0/cpu", "[1, 2] at [2, 0] rank:1/cpu"));
  ASSERT_EQ(tensor.local.size(), 1U);
  EXPECT_EQ(texts({tensor.local[0].box}), std::vector<std::string>{"[1, 2] at [2, 0] rank:1/cpu"});
}

TEST_F(TorchRanksWriter, PutsEmptyShardsAtTheEnd) {
  write({{"w", counted({5, 3})}}, RanksLayout{4}, RankFiles::kShardedTensor);
  const ShardedTensorValue tensor = sharded("rank-00003-of-00004.pt", "w");
  EXPECT_EQ(texts({tensor.local.at(0).box}), std::vector<std::string>{"[0, 3] at [5, 0] rank:3/cpu"});
}

TEST_F(TorchRanksWriter, EnumeratesShardsOfSeveralAxes) {
  write({{"w", counted({4, 2})}}, mesh("a=2,b=2", {"S(0)", "S(1)"}), RankFiles::kShardedTensor);
  const ShardedTensorValue tensor = sharded("rank-00002-of-00004.pt", "w");
  EXPECT_FALSE(tensor.spec.is_chunk);
  EXPECT_THAT(texts(tensor.all), ElementsAre("[2, 1] at [0, 0] rank:0/cpu", "[2, 1] at [0, 1] rank:1/cpu",
                                             "[2, 1] at [2, 0] rank:2/cpu", "[2, 1] at [2, 1] rank:3/cpu"));
}

TEST_F(TorchRanksWriter, HasSeveralLocalShardsWhereARankHasSeveralBoxes) {
  write({{"w", counted({4})}}, mesh("a=2", {"_S(0,2)"}), RankFiles::kShardedTensor);
  const ShardedTensorValue tensor = sharded("rank-00001-of-00002.pt", "w");
  ASSERT_EQ(tensor.local.size(), 2U);
  EXPECT_EQ(texts({tensor.local[1].box}), std::vector<std::string>{"[1] at [3] rank:1/cpu"});
}

TEST_F(TorchRanksWriter, RefusesReplicasAsShardedTensor) {
  expect_error(ErrorCode::kUnsupported, "'w' has replicas", [&] {
    write({{"w", counted({4})}}, mesh("a=2,b=2", {"R", "S(0)"}), RankFiles::kShardedTensor);
  });
  EXPECT_EQ(files_.fs().status("/d/out").kind, FileKind::kAbsent);
}

TEST_F(TorchRanksWriter, SaysMeshPlacementsAndPlaceOfADTensor) {
  write({{"w", counted({4, 4})}}, mesh("dp=2,tp=2", {"_S(0,2)", "S(0)"}), RankFiles::kDTensor);
  const DTensorValue tensor = dtensor("rank-00002-of-00004.pt", "w");
  EXPECT_EQ(tensor.sharding.mesh, parse_mesh("dp=2,tp=2"));
  EXPECT_THAT(tensor.sharding.placements, ElementsAre(parse_placement("_S(0,2)"), parse_placement("S(0)")));
  EXPECT_THAT(tensor.coordinate, ElementsAre(1, 0));
  EXPECT_EQ(to_string(tensor.shape), "[4, 4]");
  EXPECT_EQ(to_string(torch_save::as_tensor(arena_, *tensor.local)->shape), "[1, 4]");
}

TEST_F(TorchRanksWriter, StoresTheRanksOfAMeshOnceAFile) {
  write({{"v", counted({4})}, {"w", counted({4})}}, RanksLayout{2}, RankFiles::kDTensor);
  EXPECT_EQ(record("rank-00001-of-00002.pt", "data/1"), std::string("\0\0\0\0\1\0\0\0", 8));
  EXPECT_NE(record("rank-00001-of-00002.pt", "data/2"), "absent");
  EXPECT_EQ(record("rank-00001-of-00002.pt", "data/3"), "absent");
}

TEST_F(TorchRanksWriter, RefusesBoxesWithoutPlacementsAsDTensor) {
  MeshLayout layout = mesh("a=2,b=2", {"S(0)", "S(0)"});
  layout.rules[0].order = {1, 0};
  for (const RankFiles kind : {RankFiles::kDTensor, RankFiles::kPlain}) {
    expect_error(ErrorCode::kUnsupported, "'w' is sharded into boxes that no placement describes", [&] {
      write({{"w", counted({8})}}, layout, kind);
    });
  }
}

TEST_F(TorchRanksWriter, SuggestsOnlyKindsThatCanHaveTheTensor) {
  const auto suggested = [&](const MeshLayout& layout, RankFiles kind) {
    return test::error_of([&] { write({{"w", counted({8})}}, layout, kind); }).suggestions();
  };
  using Suggestions = std::vector<Suggestion>;
  const Suggestion mesh_and_place{Remedy::kUseMesh, ""};
  const MeshLayout replicas = mesh("a=2,b=2", {"R", "S(0)"});
  EXPECT_EQ(suggested(replicas, RankFiles::kShardedTensor), Suggestions({{Remedy::kHoldAs, "dtensor"}}));
  MeshLayout boxes = mesh("a=2,b=2", {"S(0)", "S(0)"});
  boxes.rules[0].order = {1, 0};
  EXPECT_EQ(suggested(boxes, RankFiles::kDTensor), Suggestions({{Remedy::kHoldAs, "sharded_tensor"}, mesh_and_place}));
  MeshLayout both = mesh("a=2,b=2,c=2", {"S(0)", "S(0)", "R"});  // Boxes without placements, each on two ranks.
  both.rules[0].order = {1, 0, 2};
  EXPECT_EQ(suggested(both, RankFiles::kShardedTensor), Suggestions({mesh_and_place}));
  EXPECT_EQ(suggested(both, RankFiles::kDTensor), Suggestions({mesh_and_place}));
}

TEST_F(TorchRanksWriter, WritesPlainSlicesWithTheirLayoutDocument) {
  write({{"a.b", counted({4})}, {"s", counted({})}}, RanksLayout{2}, RankFiles::kPlain);
  EXPECT_EQ(to_string(torch_save::as_tensor(arena_, value("rank-00001-of-00002.pt", "a.b"))->shape), "[2]");
  const MeshLayout layout = parse_layout_document(files_.content("/d/out/layout.json"), "layout.json");
  EXPECT_EQ(layout.mesh, (std::vector<MeshAxis>{{"rank", 2}}));
  EXPECT_EQ(layout.file_path, "rank-{rank}-of-00002.pt");
  ASSERT_EQ(layout.rules.size(), 1U);
  EXPECT_FALSE(layout.rules_for("a.b").empty());
  EXPECT_TRUE(layout.rules_for("s").empty());
}

TEST_F(TorchRanksWriter, WhereNothingIsCutHasADocumentThatSaysSo) {
  for (const std::int64_t ranks : {1, 3}) {
    const Content content = {{"s", counted({})}};
    write(content, RanksLayout{ranks}, RankFiles::kShardedTensor);
    const std::unique_ptr<Reader> reader = open_checkpoint(files_.fs(), "/d/out");
    EXPECT_EQ(reader->catalog().world_size, ranks);
    EXPECT_EQ(read_content(*reader), content);
    files_.fs().remove_all("/d/out");
  }
}

TEST_F(TorchRanksWriter, KeepsReplicasInEachFile) {
  write({{"w", counted({4})}}, mesh("a=2,b=2", {"R", "S(0)"}), RankFiles::kPlain);
  EXPECT_EQ(record("rank-00001-of-00004.pt", "data/0"), std::string("\2\0\3\0", 4));
  EXPECT_EQ(record("rank-00003-of-00004.pt", "data/0"), std::string("\2\0\3\0", 4));
}

TEST_F(TorchRanksWriter, KeepsTreeObjectsAndParametersOfATorchFile) {
  for (const char* name : {"nested.pt", "parameter.pt"}) {
    for (const RankFiles kind : {RankFiles::kShardedTensor, RankFiles::kDTensor, RankFiles::kPlain}) {
      files_.put("/in.pt", golden(std::string("torch/") + name));
      const std::unique_ptr<Reader> source = files_.open("/in.pt");
      write(*source, RanksLayout{2}, kind);
      const std::unique_ptr<Reader> copied = open_checkpoint(files_.fs(), "/d/out", "torch-ranks");
      EXPECT_EQ(read_content(*copied), read_content(*source)) << name;
      ASSERT_EQ(copied->catalog().objects.size(), source->catalog().objects.size()) << name;
      for (std::size_t i = 0; i < source->catalog().objects.size(); ++i) {
        EXPECT_EQ(copied->catalog().objects[i].name, source->catalog().objects[i].name);
        EXPECT_EQ(type_name(*copied->catalog().objects[i].value), type_name(*source->catalog().objects[i].value));
      }
      files_.fs().remove_all("/d/out");
    }
  }
}

TEST_F(TorchRanksWriter, SavesAParameterThatIsCutAsTorchDoes) {
  files_.put("/in.pt", golden("torch/parameter.pt"));
  const std::unique_ptr<Reader> source = files_.open("/in.pt");
  write(*source, RanksLayout{2}, RankFiles::kDTensor);
  const std::string name(source->catalog().tensors[0].name);
  const Value& saved = value("rank-00000-of-00002.pt", name);
  ASSERT_TRUE(saved.is_call_of("torch._tensor", "_rebuild_from_type_v2"));
  EXPECT_NE(find_key(*saved.items()[3]->items()[0], "_is_param"), nullptr);
}

TEST_F(TorchRanksWriter, OneObjectUnderTwoNamesKeepsOneStorageARank) {
  files_.put("/in.pt", golden("torch/same_object.pt"));
  const std::unique_ptr<Reader> source = files_.open("/in.pt");
  write(*source, RanksLayout{2}, RankFiles::kShardedTensor);
  const std::unique_ptr<Reader> copied = open_checkpoint(files_.fs(), "/d/out", "torch-ranks");
  EXPECT_EQ(read_content(*copied), read_content(*source));
  for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
    EXPECT_EQ(copied->catalog().tensors[i].alias_of, source->catalog().tensors[i].alias_of);
  }
}

TEST_F(TorchRanksWriter, EqualContentGivesEqualBytes) {
  write({{"w", counted({4})}}, RanksLayout{2}, RankFiles::kDTensor);
  const std::string once = files_.content("/d/out/rank-00001-of-00002.pt");
  files_.fs().remove_all("/d/out");
  write({{"w", counted({4})}}, RanksLayout{2}, RankFiles::kDTensor);
  EXPECT_TRUE(files_.content("/d/out/rank-00001-of-00002.pt") == once);
}

TEST_F(TorchRanksWriter, IsAFolder) {
  expect_error(ErrorCode::kInvalidArgument, "needs a folder", [&] {
    write_checkpoint(
        files_.fs(), *content_reader({{"w", counted({4})}}),
        {.format = "torch-ranks", .destination = "/d/out.pt", .layout = RanksLayout{2}, .single_file = true});
  });
}

TEST(ShardedValueMaker, KeepsTheDeviceOfPlacements) {
  Arena arena;
  ShardedTensorValue tensor;
  const std::int64_t sizes[] = {2}, offsets[] = {0};
  tensor.dtype = DType::kFloat32;
  tensor.shape = arena.dims(sizes);
  tensor.requires_grad = true;
  tensor.all = {{arena.dims(offsets), arena.dims(sizes), "rank:3/cuda:1", 3}};
  tensor.local = {{tensor.all[0], make_tensor(arena, 0)}};
  tensor.group = {3, 3, 4, 4};
  const auto read = as_sharded_tensor(arena, *torch_ranks::ShardedValueMaker(arena).sharded_tensor(tensor));
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->all.size(), 1U);
  EXPECT_EQ(read->all[0].placement, "rank:3/cuda:1");
  EXPECT_TRUE(read->requires_grad);
  EXPECT_EQ(read->group, tensor.group);
}

TEST(ShardedValueMaker, KeepsWhatOnlyProgramsSay) {
  Arena arena;
  ShardedTensorValue tensor;
  const std::int64_t sizes[] = {2}, offsets[] = {0};
  tensor.shape = arena.dims(sizes);
  tensor.pin_memory = tensor.init_rrefs = true;
  tensor.memory_format = 2;
  tensor.all = {{arena.dims(offsets), arena.dims(sizes), "worker1/cuda:0", -1}};
  tensor.group = {-1, 3, -1, 4};  // The rank of a process outside the tensor's group.
  tensor.spec = {true, -1, {"worker1/cuda:0", "cpu"}};
  const auto read = as_sharded_tensor(arena, *torch_ranks::ShardedValueMaker(arena).sharded_tensor(tensor));
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->pin_memory && read->init_rrefs);
  EXPECT_EQ(read->memory_format, 2);
  ASSERT_EQ(read->all.size(), 1U);
  EXPECT_EQ(read->all[0].placement, "worker1/cuda:0");
  EXPECT_EQ(read->group, tensor.group);
  EXPECT_EQ(read->spec.dim, -1);
  EXPECT_THAT(read->spec.placements, ElementsAre("worker1/cuda:0", "cpu"));
}

TEST(ShardedValueMaker, AShardWithoutAPlacementStaysSo) {
  Arena arena;
  ShardedTensorValue tensor;
  const std::int64_t sizes[] = {2}, offsets[] = {0};
  tensor.shape = arena.dims(sizes);
  tensor.all = {{arena.dims(offsets), arena.dims(sizes), {}, -1}};
  tensor.local = {{tensor.all[0], make_tensor(arena, 0)}};
  const auto read = as_sharded_tensor(arena, *torch_ranks::ShardedValueMaker(arena).sharded_tensor(tensor));
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->all.size(), 1U);
  EXPECT_EQ(read->all[0].placement, "");
}

Sharding sharding_of(std::string_view axes, std::vector<std::int64_t> ranks = {}) {
  return {parse_mesh(axes), std::move(ranks), {}};
}

/// The field `key` in the `state` of a layout.
std::vector<std::int64_t> numbers_of(const Value& layout, std::string_view key) {
  std::vector<std::int64_t> numbers;
  for (const Value* item : find_key(*layout.state(), key)->items()) numbers.push_back(item->number);
  return numbers;
}

// The form in pickles of torch 2.11.0 and 2.15.0: tests/data/golden, ranks_mesh_r4.
TEST(ShardedValueMaker, AMeshsLayoutHasTheFormThatIsAskedFor) {
  using torch_ranks::LayoutForm;
  Arena arena;
  torch_ranks::ShardedValueMaker maker(arena);
  const Sharding sharding = sharding_of("dp=2,one=1,tp=3");
  const auto layout_in = [&](LayoutForm form) -> const Value& {
    const Value* mesh = maker.device_mesh(
        {.sharding = &sharding, .index = 4, .groups = {"1", "2", "3"}, .ranks = make_tensor(arena, 0), .layout = form});
    EXPECT_EQ(find_key(*mesh->state(), "_preserve_rank_order") != nullptr, form == LayoutForm::kAxes);
    return *find_key(*mesh->state(), "_layout");
  };
  const Value& pair = layout_in(LayoutForm::kPair);
  EXPECT_THAT(numbers_of(pair, "shape"), ElementsAre(2, 1, 3));
  EXPECT_THAT(numbers_of(pair, "stride"), ElementsAre(3, 3, 1));
  const std::span<Value*> axes = find_key(*layout_in(LayoutForm::kAxes).state(), "axes")->items();
  ASSERT_EQ(axes.size(), 3U);
  EXPECT_THAT(numbers_of(*axes[0], "shape"), ElementsAre(2));
  EXPECT_THAT(numbers_of(*axes[0], "stride"), ElementsAre(3));
  EXPECT_THAT(numbers_of(*axes[1], "shape"), ElementsAre());
  EXPECT_THAT(numbers_of(*axes[1], "stride"), ElementsAre());
  EXPECT_THAT(numbers_of(*axes[2], "shape"), ElementsAre(3));
}

TEST(GroupNames, AreThoseOfTorchsFirstMesh) {
  // init_device_mesh("cpu", (2, 2)) of torch 2.11 on ranks 0 to 3.
  EXPECT_THAT(GroupNames().add_mesh(sharding_of("dp=2,tp=2"), 0, 4), ElementsAre("1", "3"));
  EXPECT_THAT(GroupNames().add_mesh(sharding_of("dp=2,tp=2"), 1, 4), ElementsAre("2", "3"));
  EXPECT_THAT(GroupNames().add_mesh(sharding_of("dp=2,tp=2"), 2, 4), ElementsAre("1", "4"));
  EXPECT_THAT(GroupNames().add_mesh(sharding_of("dp=2,tp=2"), 3, 4), ElementsAre("2", "4"));
}

TEST(GroupNames, OfAllRanksIsTheDefaultGroup) {
  EXPECT_THAT(GroupNames().add_mesh(sharding_of("dp=4"), 3, 4), ElementsAre("0"));
}

TEST(GroupNames, OfASecondMeshGoOn) {
  GroupNames names;
  names.add_mesh(sharding_of("dp=2,tp=2"), 0, 4);
  EXPECT_THAT(names.add_mesh(sharding_of("a=2,b=2"), 0, 4), ElementsAre("5", "7"));
}

}  // namespace
}  // namespace shard::testing
