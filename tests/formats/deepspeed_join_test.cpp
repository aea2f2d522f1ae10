// Two saves of the real DeepSpeed as the two tensor-parallel ranks of one, joined by universal_checkpoint_info.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/join.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/deepspeed_saves.h"

namespace shard {
namespace {

using testing::Content;
using testing::kStage1Model;
using testing::open_checkpoint;
using testing::read_content;
using testing::save_path;

Value* text_list(Arena& arena, std::initializer_list<const char*> texts) {
  std::vector<Value*> items;
  for (const char* text : texts) items.push_back(make_string(arena, text));
  return make_list(arena, ValueKind::kList, items);
}

Value* dict(Arena& arena, std::initializer_list<std::pair<const char*, Value*>> entries) {
  std::vector<Value*> items;
  for (const auto& [key, value] : entries) items.insert(items.end(), {make_string(arena, key), value});
  return make_list(arena, ValueKind::kDict, items);
}

Value* numbers(Arena& arena, std::initializer_list<std::int64_t> values) {
  std::vector<Value*> items;
  for (const std::int64_t value : values) items.push_back(make_int(arena, value));
  return make_list(arena, ValueKind::kTuple, items);
}

class Joined : public testing::RemadeSave {
 protected:
  using MakeInfo = std::function<Value*(Arena&)>;

  /// Model-parallel rank 0 is stage1, rank 1 stage2_robin: as many data-parallel ranks and the same parameters.
  void take_ranks(const MakeInfo& info) {
    take_all("stage1");
    take("stage2_robin", "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
    for (const std::string rank : {"0", "1"}) {
      take("stage2_robin", "bf16_zero_pp_rank_" + rank + "_mp_rank_00_optim_states.pt",
           "bf16_zero_pp_rank_" + rank + "_mp_rank_01_optim_states.pt");
    }
    for (const char* file : {kStage1Model, "mp_rank_01_model_states.pt"}) edit(file, without_scale);
    edit(kStage1Model, [&](Arena& arena, Value& root) {
      std::vector<Value*> items(root.items().begin(), root.items().end());
      items.insert(items.end(), {make_string(arena, "universal_checkpoint_info"), info(arena)});
      root = *make_list(arena, ValueKind::kDict, items);
    });
  }

  /// The two saves have this buffer in different dtypes.
  static void without_scale(Arena& arena, Value& root) {
    Value& module = *find_key(root, "module");
    std::vector<Value*> items;
    for (std::size_t i = 0; i + 1 < mapping_items(module).size(); i += 2) {
      if (mapping_items(module)[i]->text() == "scale") continue;
      items.insert(items.end(), {mapping_items(module)[i], mapping_items(module)[i + 1]});
    }
    module = *make_list(arena, ValueKind::kDict, items);
  }

  /// Rows [begin, end) of a matrix or vector.
  static std::vector<std::byte> rows(const testing::ContentTensor& tensor, std::int64_t begin, std::int64_t end) {
    const auto row = static_cast<std::ptrdiff_t>(tensor.bytes.size()) / tensor.shape[0];
    return {tensor.bytes.begin() + begin * row, tensor.bytes.begin() + end * row};
  }
  static std::vector<std::byte> together(std::initializer_list<std::vector<std::byte>> parts) {
    std::vector<std::byte> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  const Content zero_ = read_content(*open_checkpoint(posix_disk(), save_path("stage1")));
  const Content one_ = read_content(*open_checkpoint(posix_disk(), save_path("stage2_robin")));
};

TEST_F(Joined, EachListOfPatternsHasItsRule) {
  take_ranks([](Arena& arena) {
    Value* const shape = make_list(arena, ValueKind::kTuple, std::array{numbers(arena, {6, 8}), make_int(arena, 5)});
    return dict(arena, {{"universal_checkpoint_version", make_int(arena, 0)},
                        {"tp_replicated_parameter_patterns", text_list(arena, {"norm\\.(weight|bias)$"})},
                        {"parameter_with_row_parallelism_patterns", text_list(arena, {"b.weight"})},
                        {"vocabulary_parameter_patterns", text_list(arena, {"embed"})},
                        {"original_vocab_size", make_int(arena, 9)},
                        {"parameter_with_sub_params",
                         make_list(arena, ValueKind::kList,
                                   std::array{dict(arena, {{"patterns", text_list(arena, {"head.weight"})},
                                                           {"shape", shape},
                                                           {"partition_dim", make_int(arena, 0)}})})}});
  });
  const std::unique_ptr<Reader> reader = open();
  EXPECT_EQ(reader->catalog().world_size, 4);
  const Content content = read_content(*reader);
  for (const std::string state : {"", ".exp_avg", ".exp_avg_sq"}) {
    SCOPED_TRACE(state);
    const auto name = [&](const std::string& param) {
      return state.empty() ? param : "optimizer.state." + param + state;
    };
    const auto of = [&](const Content& from, const std::string& param) -> const auto& { return from.at(name(param)); };
    EXPECT_THAT(content.at(name("norm.bias")),  // The lowest rank's replica is read, and these differ.
                ::testing::AnyOf(of(zero_, "norm.bias"), of(one_, "norm.bias")));
    EXPECT_EQ(content.at(name("a.bias")).bytes, together({of(zero_, "a.bias").bytes, of(one_, "a.bias").bytes}));
    EXPECT_EQ(content.at(name("embed.weight")).shape, (std::vector<std::int64_t>{9, 5}));
    EXPECT_EQ(content.at(name("embed.weight")).bytes,
              together({of(zero_, "embed.weight").bytes, rows(of(one_, "embed.weight"), 0, 2)}));
    EXPECT_EQ(content.at(name("head.weight")).bytes,
              together({rows(of(zero_, "head.weight"), 0, 3), rows(of(one_, "head.weight"), 0, 3),
                        rows(of(zero_, "head.weight"), 3, 7), rows(of(one_, "head.weight"), 3, 7)}));
    EXPECT_EQ(content.at(name("b.weight")).shape, (std::vector<std::int64_t>{5, 6}));
    std::vector<std::byte> wide;
    for (std::int64_t row = 0; row < 5; ++row) {
      wide = together({wide, rows(of(zero_, "b.weight"), row, row + 1), rows(of(one_, "b.weight"), row, row + 1)});
    }
    EXPECT_EQ(content.at(name("b.weight")).bytes, wide);
  }
  EXPECT_EQ(content.at("steps"), zero_.at("steps"));
}

/// A pipeline of two stages with two tensor-parallel ranks each, which are copies.
class JoinedPipeline : public Joined {
 protected:
  void take_stages(const MakeInfo& info) {
    take_all("pipeline_stage1");
    const auto copy = [&](const std::string& from, const std::string& to) {
      files_[to] = testing::repickled(files_.at(from), [](Arena&, Value&) {});  // A zip without the other name.
    };
    for (const auto& [from, to] : {std::pair("_01_", "_03_"), std::pair("_01_", "_02_"), std::pair("_00_", "_01_")}) {
      copy(std::string("mp_rank") + from + "model_states.pt", std::string("mp_rank") + to + "model_states.pt");
      for (const std::string rank : {"0", "1"}) {
        const std::string begin = "bf16_zero_pp_rank_" + rank + "_mp_rank";
        copy(begin + from + "optim_states.pt", begin + to + "optim_states.pt");
      }
    }
    for (const std::string layer : {"00", "01", "03", "04", "05"}) {
      copy("layer_" + layer + "-model_00-model_states.pt", "layer_" + layer + "-model_01-model_states.pt");
    }
    edit(kStage1Model, [&](Arena& arena, Value& root) {
      testing::set(*find_key(root, "checkpoint_parallel_dimensions"), "tp_degree", make_int(arena, 2));
      std::vector<Value*> items(root.items().begin(), root.items().end());
      items.insert(items.end(), {make_string(arena, "universal_checkpoint_info"), info(arena)});
      root = *make_list(arena, ValueKind::kDict, items);
    });
  }
};

TEST_F(JoinedPipeline, BuffersOfAllStagesAreEqualOnTheRanks) {
  take_stages([](Arena& arena) { return dict(arena, {}); });
  edit("mp_rank_02_model_states.pt",
       [](Arena& arena, Value& root) { testing::set(root, "buffer_names", text_list(arena, {"4.bias"})); });
  const std::unique_ptr<Reader> reader = open();
  EXPECT_EQ(reader->catalog().find("4.bias")->shape[0], 5);
  EXPECT_EQ(reader->catalog().find("4.weight")->shape[0], 10);
}

TEST_F(JoinedPipeline, ARuleForASharedLayerOfUnknownKeyIsRefused) {
  take_stages([](Arena& arena) {
    return dict(arena, {{"tp_replicated_parameter_patterns", text_list(arena, {"tied_modules\\.embed\\.weight"})}});
  });
  EXPECT_EQ(open()->catalog().find("tied_modules.embed.weight")->shape[0], 7);
  std::erase_if(files_, [](const auto& file) { return file.first.find("optim_states") != std::string::npos; });
  for (const std::string rank : {"0", "1", "2", "3"}) {
    edit("mp_rank_0" + rank + "_model_states.pt", [](Arena& arena, Value& root) {
      testing::set(root, "param_shapes", make_value(arena, ValueKind::kNone));
      testing::set(root, "ds_config", make_list(arena, ValueKind::kDict, {}));
    });
  }
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported) << found.what();
  EXPECT_THAT(found.why(), ::testing::HasSubstr("which may be that of a shared layer"));
}

TEST_F(JoinedPipeline, NamesOfSeveralStagesAreRefused) {
  take_all("pipeline_stage1");
  edit("mp_rank_01_model_states.pt", [](Arena& arena, Value& root) {
    Value* const group = find_key(root, "param_shapes")->items()[0];
    mapping_items(*group)[2] = make_string(arena, "3.bias");
  });
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(found.why(), ::testing::HasSubstr("stages of a pipeline have the same name '3."));
}

TEST_F(Joined, WhatDoesNotFitIsRefused) {
  take_ranks([](Arena& arena) {
    return dict(arena, {{"parameter_with_2_sub_params_cat_dim_0", text_list(arena, {"a.weight"})}});
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "a.weight");
}

TEST_F(Joined, SegmentsThatLeaveRowsAreRefused) {
  take_ranks([](Arena& arena) {  // Each rank has 7 rows.
    Value* const shape = make_list(arena, ValueKind::kTuple, std::array{numbers(arena, {6, 4}), make_int(arena, 5)});
    Value* const list = dict(
        arena,
        {{"patterns", text_list(arena, {"head.weight"})}, {"shape", shape}, {"partition_dim", make_int(arena, 0)}});
    return dict(arena, {{"parameter_with_sub_params", make_list(arena, ValueKind::kList, std::array{list})}});
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "head.weight");
}

TEST_F(Joined, AParameterThatOneRankAloneHasIsRefused) {
  take_ranks([](Arena& arena) { return dict(arena, {}); });
  edit("mp_rank_01_model_states.pt", [](Arena& arena, Value& root) {
    Value* const group = find_key(root, "param_shapes")->items()[0];
    mapping_items(*group)[0] = make_string(arena, "other");
  });
  EXPECT_EQ(error().code(), ErrorCode::kUnsupported);
}

TEST_F(Joined, ASaveOfOtherStepsIsAnother) {
  take_ranks([](Arena& arena) { return dict(arena, {}); });
  edit("mp_rank_01_model_states.pt",
       [](Arena& arena, Value& root) { testing::set(root, "global_steps", make_int(arena, 9)); });
  expect_refused(ErrorCode::kCorruption, FindingKind::kMixedSave, "mp_rank_01");
}

/// A rule of each kind for the parameters of the saves.
Value* every_rule(Arena& arena) {
  Value* const shape = make_list(arena, ValueKind::kTuple, std::array{numbers(arena, {6, 8}), make_int(arena, 5)});
  const std::array sub{
      dict(arena,
           {{"patterns", text_list(arena, {"head.weight"})}, {"shape", shape}, {"partition_dim", make_int(arena, 0)}})};
  return dict(arena, {{"universal_checkpoint_version", make_int(arena, 0)},
                      {"parameter_with_row_parallelism_patterns", text_list(arena, {"b.weight"})},
                      {"vocabulary_parameter_patterns", text_list(arena, {"embed"})},
                      {"original_vocab_size", make_int(arena, 9)},
                      {"parameter_with_sub_params", make_list(arena, ValueKind::kList, sub)}});
}

TEST_F(Joined, EachModelParallelRankIsWrittenForOtherRanks) {
  take_ranks(every_rule);
  const Content expected = read_content(*open());
  for (const std::int64_t ranks : {2, 4, 10}) {
    const std::unique_ptr<Reader> reader = remade(kDeepSpeedFormat, {.ranks = ranks});
    EXPECT_EQ(reader->catalog().world_size, ranks);
    EXPECT_EQ(read_content(*reader), expected) << ranks;
  }
  EXPECT_EQ(read_content(*remade(kDeepSpeedFormat, {})), expected);
}

TEST_F(Joined, FilesComeBackAsTheyWere) {
  take_ranks(every_rule);
  remade(kDeepSpeedFormat, {.ranks = 10});
  std::map<std::string, std::string> source;
  std::swap(source, files_);
  for (const std::string& name : disk_->list("/out/s")) files_[name] = content_of("/out/s/" + name);
  remade(kDeepSpeedFormat, {.ranks = 4});
  for (const auto& [name, bytes] : source) {
    state_->put("/source/" + name, test::as_span(bytes));
    EXPECT_EQ(read_content(*open_checkpoint(*disk_, "/out/s/" + name, "torch")),
              read_content(*open_checkpoint(*disk_, "/source/" + name, "torch")))
        << name;
  }
}

TEST_F(Joined, RanksThatModelParallelOnesDoNotDivideAreRefused) {
  take_ranks(every_rule);
  EXPECT_EQ(refusal(kDeepSpeedFormat, {.ranks = 3}).code(), ErrorCode::kInvalidArgument);
}

TEST_F(Joined, AUniversalCheckpointHoldsTheJoinedTensors) {
  take_ranks(every_rule);
  const Content expected = read_content(*open());
  EXPECT_EQ(read_content(*remade(kDeepSpeedUniversalFormat, {})), expected);
  const auto said = [&](const std::string& param) {
    std::set<std::string> names;
    const auto file = open_checkpoint(*disk_, "/out/s/zero/" + param + "/fp32.pt", "torch");
    for (const Object& object : file->catalog().objects) names.emplace(object.name);
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(said("a.weight"), (Names{"cat_dim"}));
  EXPECT_EQ(said("b.weight"), (Names{"cat_dim"}));
  EXPECT_EQ(said("embed.weight"), (Names{"cat_dim", "vocab_tensor"}));
  EXPECT_THAT(said("head.weight"), ::testing::Contains(::testing::StartsWith("sub_param_shape")));
  EXPECT_EQ(disk_->status("/out/s/mp_rank_01_model_states.pt").kind, FileKind::kFile);
}

TEST_F(Joined, AUniversalCheckpointOfFrozenPartsIsRefused) {
  take_ranks(every_rule);
  remade(kDeepSpeedUniversalFormat, {});
  const std::string model = std::string("/out/s/") + kStage1Model;
  const std::string changed = testing::repickled(content_of(model), [](Arena& arena, Value& root) {
    Value& module = *find_key(root, "module");
    std::vector<Value*> items(mapping_items(module).begin(), mapping_items(module).end());
    items.insert(items.end(), {make_string(arena, "frozen"), *std::next(items.begin())});
    module = *make_list(arena, ValueKind::kDict, items);
  });
  state_->put(model, test::as_span(changed));
  EXPECT_EQ(test::error_of([&] {
              kDeepSpeedUniversalFormat.open({disk_.get(), {"/out"}}, {});
            }).code(),
            ErrorCode::kUnsupported);
}

TEST(JoinRules, TwoSubParametersAreHalves) {
  Arena arena;
  const Value* const info =
      dict(arena, {{"parameter_with_2_sub_params_cat_dim_0", text_list(arena, {".*dense_h_to_4h.weight"})}});
  EXPECT_TRUE(deepspeed::JoinRules(*info).rule_for("layers.0.dense_h_to_4h.weight").is_halved);
  EXPECT_FALSE(deepspeed::JoinRules(*info).rule_for("layers.0.dense.weight").is_halved);
}

TEST(JoinRules, PatternsMatchAtTheBeginAsInPython) {
  Arena arena;
  const Value* const info = dict(arena, {{"tp_replicated_parameter_patterns", text_list(arena, {"norm"})}});
  const deepspeed::JoinRules rules(*info);
  EXPECT_EQ(rules.rule_for("norm.weight").kind, deepspeed::JoinRule::Kind::kReplicated);
  EXPECT_EQ(rules.rule_for("a.norm.weight").kind, deepspeed::JoinRule::Kind::kConcat);
}

TEST(JoinRules, WhatIsNotReadIsRefused) {
  Arena arena;
  const auto refused = [](const Value* info, const char* name) {
    return test::error_of([&] { deepspeed::JoinRules(*info).rule_for(name); }).code() == ErrorCode::kUnsupported;
  };
  EXPECT_TRUE(refused(dict(arena, {{"parameter_to_average_patterns", text_list(arena, {"a"})}}), "b"));
  EXPECT_TRUE(
      refused(dict(arena, {{"autotp_unsupported_parameter_patterns", dict(arena, {{"a", make_int(arena, 1)}})}}), "b"));
  EXPECT_NO_THROW(deepspeed::JoinRules(*dict(arena, {{"autotp_unsupported_parameter_patterns", dict(arena, {})}})));
  const auto map_of = [&](const char* key) {
    return dict(arena, {{"affine_map", dict(arena, {{"params", dict(arena, {{key, make_int(arena, 2)}})}})}});
  };
  EXPECT_TRUE(refused(map_of("scale"), "b"));
  EXPECT_NO_THROW(deepspeed::JoinRules(*map_of("shape")));
  EXPECT_TRUE(refused(dict(arena, {{"tp_replicated_parameter_patterns", text_list(arena, {"(?=a)"})}}), "b"));
  EXPECT_TRUE(refused(dict(arena, {{"vocabulary_parameter_patterns", text_list(arena, {"a"})}}), "a"));
  EXPECT_TRUE(refused(dict(arena, {{"tp_replicated_parameter_patterns", text_list(arena, {"a"})},
                                   {"parameter_with_row_parallelism_patterns", text_list(arena, {"a"})}}),
                      "a"));
  EXPECT_TRUE(
      refused(dict(arena, {{"tp_replicated_parameter_patterns",
                            text_list(arena, {"x{0,1000}a", "x{0,1000}b", "x{0,1000}c", "x{0,1000}d", "x{0,1000}e",
                                              "x{0,1000}f", "x{0,1000}g", "x{0,1000}h", "x{0,1000}i"})}}),
              "b"));
}

}  // namespace
}  // namespace shard
