// Checkpoints of the real Megatron-Core (tests/data/megatron/make.py) compared with its models, and changed ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "formats/detect.h"
#include "formats/megatron_dist/format.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/megatron_saves.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::Contains;
using testing::Content;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::open_checkpoint;
using testing::read_content;

std::string data(const std::string& name) { return std::string(SHARD_TEST_DATA) + "/megatron/" + name; }

const Value* value_of(const Catalog& catalog, std::string_view name) {
  const Object* const object = testing::find_object(catalog, name);
  return object == nullptr ? nullptr : object->value;
}

/// The golden iteration "dense" in memory, under /c.
class Megatron : public ::testing::Test {
 protected:
  void put(const std::string& folder = "/c") {
    for (const auto& [name, content] : files) put(folder + "/" + name, content);
  }
  void put(const std::string& path, std::string_view content) { state->put(path, std::as_bytes(std::span(content))); }
  std::string detected(const std::string& path) { return std::string(detect_format({disk.get(), {path}}).traits.name); }
  std::unique_ptr<Reader> open(const std::string& path = "/c") {
    return kMegatronDistFormat.open({disk.get(), {path}}, {});
  }
  /// Replaces a name in .metadata by one of the same length.
  void rename(std::string_view from, std::string to) {
    ASSERT_LE(to.size(), from.size());
    to.resize(from.size(), 'x');
    std::string& metadata = files.at(".metadata");
    ASSERT_NE(metadata.find(from), std::string::npos);
    for (std::size_t at; (at = metadata.find(from)) != std::string::npos;) metadata.replace(at, from.size(), to);
  }

  std::map<std::string, std::string> files = testing::files_below(data("dense/iter_0000007"));
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
};

class MegatronGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(MegatronGolden, HoldsWhatTheModelHeld) {
  const Content truth = testing::truth_beside(data(GetParam()));
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), data(GetParam()));
  EXPECT_EQ(reader->catalog().format, "megatron-dist");
  Content content = read_content(*reader);
  std::erase_if(content, [](const auto& entry) { return entry.first.starts_with("optimizer."); });
  ASSERT_EQ(content.size(), truth.size());
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(content.contains(name)) << name;
    EXPECT_EQ(content.at(name), tensor) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, MegatronGolden, ::testing::Values("dense", "dense_tp2", "experts"));

TEST_F(Megatron, MetadataJsonAloneTells) {
  put();
  EXPECT_EQ(detected("/c"), "megatron-dist");
  for (const char* other :
       {R"({"sharded_backend": "zarr"})", R"({"step": 3})", "torch_dist", "", "{\"sharded_backend\": \"torch_dist\""}) {
    put("/c/metadata.json", other);
    EXPECT_EQ(detected("/c"), "dcp") << other;
  }
}

TEST_F(Megatron, TheFolderAboveIsFound) {
  put("/number/iter_0000007");
  put("/number/latest_checkpointed_iteration.txt", "7\n");
  put("/release/release");
  put("/release/latest_checkpointed_iteration.txt", "release");
  put("/nemo/weights");
  put("/nemo/context/model.yaml", "x");
  put("/nemo1/model_weights");
  for (const char* folder : {"/number", "/release", "/nemo", "/nemo1"}) {
    EXPECT_EQ(detected(folder), "megatron-dist") << folder;
    EXPECT_EQ(open(folder)->catalog().tensors.size(), 27U) << folder;
  }
}

TEST_F(Megatron, TheTrackerDecides) {
  put("/run/iter_0000007");
  put("/run/iter_0000009/.metadata", "x");
  for (const char* tracker : {"9", "../run/iter_0000007", "", "-7", "99999999999999999999"}) {
    put("/run/latest_checkpointed_iteration.txt", tracker);
    test::expect_error(ErrorCode::kNotFound, "not a checkpoint of Megatron-Core", [&] { open("/run"); });
  }
  put("/run/latest_checkpointed_iteration.txt", "7");
  EXPECT_EQ(open("/run")->catalog().tensors.size(), 27U);
}

TEST_F(Megatron, ArgumentsAreObjectsWhateverElseTheyName) {
  put();
  const std::unique_ptr<Reader> reader = open();
  for (const bool loaded : {false, true}) {
    if (loaded) reader->load_objects();
    const Catalog& catalog = reader->catalog();
    ASSERT_NE(value_of(catalog, "args.hidden_size"), nullptr);
    EXPECT_EQ(value_of(catalog, "args.hidden_size")->number, 8);
    EXPECT_EQ(value_of(catalog, "args.activation_func")->kind, ValueKind::kOpaque);
    EXPECT_EQ(value_of(catalog, "args.model_type")->kind, ValueKind::kCall);
    EXPECT_EQ(value_of(catalog, "iteration")->number, 7);
    EXPECT_EQ(value_of(catalog, "optimizer.param_groups.0.lr")->real, 0.001);
  }
}

TEST_F(Megatron, ShardedObjectsAreObjects) {
  put();
  const std::unique_ptr<Reader> reader = open();
  reader->load_objects();
  const Value* extra = value_of(reader->catalog(), "decoder.layers.mlp.linear_fc1._extra_state/shard_1_2.0");
  ASSERT_NE(extra, nullptr);
  EXPECT_EQ(extra->kind, ValueKind::kNone);
}

TEST_F(Megatron, WithoutCommonDataTensorsAreRead) {
  files.erase("common.pt");
  put();
  const std::unique_ptr<Reader> reader = open();
  reader->load_objects();
  EXPECT_EQ(reader->catalog().tensors.size(), 27U);
  EXPECT_EQ(value_of(reader->catalog(), "args.hidden_size"), nullptr);
}

TEST_F(Megatron, DamagedCommonDataIsAnError) {
  files["common.pt"].resize(1000);
  put();
  const Error error = test::error_of([&] { open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.file(), HasSubstr("common.pt"));
}

TEST_F(Megatron, FlatBuffersOfTheOptimizerAreNotTensors) {
  rename("optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.layer_norm_weight",
         "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(x, y).bucket_idx_0.param");
  put();
  const std::unique_ptr<Reader> reader = open();
  EXPECT_EQ(reader->catalog().tensors.size(), 26U);
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("flat buffers of the optimizer")));
  const auto object = std::ranges::find_if(
      reader->catalog().objects, [](const Object& each) { return each.name.starts_with("optimizer.distributed."); });
  ASSERT_NE(object, reader->catalog().objects.end());
  EXPECT_EQ(object->value->kind, ValueKind::kOpaque);
}

/// Takes the first dimension from the sizes of a tensor's chunks.
std::string with_short_chunks(const std::string& metadata, std::string_view name) {
  Arena arena;
  pickle::LoadOptions load;
  load.allow = [](std::string_view, std::string_view) { return true; };
  Value* const root = pickle::load(arena, std::as_bytes(std::span(metadata)), load);
  Value* const tensor = find_key(*find_key(*root->state(), "state_dict_metadata"), name);
  for (Value* chunk : find_key(*tensor->state(), "chunks")->items()) {
    Value& sizes = *find_key(*chunk->state(), "sizes");
    Value* const arguments = sizes.items()[0];
    std::vector<Value*> rest(arguments->items().begin() + 1, arguments->items().end());
    sizes = *make_call(arena, sizes.callee(), std::vector{make_list(arena, ValueKind::kTuple, rest)});
  }
  pickle::Dumper dumper({.protocol = 4, .tensor = {}});
  dumper.value(*root);
  return dumper.finish();
}

TEST_F(Megatron, ChunksThatLackDimensionsCostTheirTensorsAlone) {
  constexpr std::string_view kTensor = "decoder.layers.mlp.linear_fc2.weight";
  files[".metadata"] = with_short_chunks(files.at(".metadata"), kTensor);
  put();
  const std::unique_ptr<Reader> reader = open();
  EXPECT_EQ(reader->catalog().tensors.size(), 26U);
  EXPECT_EQ(reader->catalog().find(kTensor), nullptr);
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("'decoder.layers.mlp.linear_fc2.weight' first")));
  ASSERT_NE(value_of(reader->catalog(), kTensor), nullptr);
  EXPECT_EQ(value_of(reader->catalog(), kTensor)->kind, ValueKind::kOpaque);

  CollectedFindings found;
  OpenOptions options;
  options.findings = &found;
  detect_format({disk.get(), {"/c"}}).open({disk.get(), {"/c"}}, options);
  EXPECT_THAT(found.kinds(), ElementsAre(FindingKind::kShapeMismatch));
}

TEST_F(Megatron, OfDcpTheyAreDamage) {
  files[".metadata"] = with_short_chunks(files.at(".metadata"), "decoder.layers.mlp.linear_fc2.weight");
  files.erase("metadata.json");
  put();
  const Error error = test::error_of([&] { detect_format({disk.get(), {"/c"}}).open({disk.get(), {"/c"}}, {}); });
  EXPECT_EQ(error.kind(), FindingKind::kShapeMismatch);
}

TEST_F(Megatron, CommonDataThatShouldBeThereAreMissed) {
  files.erase("common.pt");
  put();
  EXPECT_THAT(open()->catalog().warnings, Contains(HasSubstr("common.pt is missing")));
  put("/c/metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  EXPECT_THAT(open()->catalog().warnings, Not(Contains(HasSubstr("common.pt"))));
}

}  // namespace
}  // namespace shard
