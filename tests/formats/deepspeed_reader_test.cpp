// Saves of the real DeepSpeed (tests/data/deepspeed/make.py) compared with its live engine, and damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "formats/deepspeed/format.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/deepspeed_saves.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using testing::Content;
using testing::DamagedSave;
using testing::forget_stage;
using ::testing::HasSubstr;
using testing::in_optimizer;
using testing::kStage1Model;
using testing::kStage1Optimizers;
using testing::list_states;
using testing::open_checkpoint;
using testing::read_content;
using testing::save_path;
using testing::set;

OpenOptions of_module() {
  OpenOptions options;
  options.choices["weights"] = "16bit";
  return options;
}

class DeepSpeedGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(DeepSpeedGolden, HoldsWhatTheEngineHeld) {
  const Content truth = read_content(*open_checkpoint(posix_disk(), save_path(GetParam()) + ".safetensors"));
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), save_path(GetParam()) + "/global_step2");
  EXPECT_EQ(reader->catalog().format, "deepspeed");
  const Content content = read_content(*reader);
  ASSERT_EQ(content.size(), truth.size());
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(content.contains(name)) << name;
    EXPECT_EQ(content.at(name), tensor) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, DeepSpeedGolden,
                         ::testing::Values("stage1", "stage1_frozen", "stage2_tied", "stage3", "stage3_groups"));

std::vector<std::byte> rounded_to_bfloat16(const std::vector<std::byte>& floats) {
  std::vector<std::byte> halves(floats.size() / 2);
  for (std::size_t i = 0; i < floats.size() / 4; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, floats.data() + 4 * i, sizeof bits);
    const auto half = static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    std::memcpy(halves.data() + 2 * i, &half, sizeof half);
  }
  return halves;
}

class DeepSpeedHalves : public ::testing::TestWithParam<const char*> {};

/// The engine derives the module's copies from the masters after each step, so their order is tested too.
TEST_P(DeepSpeedHalves, MastersRoundToTheModulesCopies) {
  const Source source{&posix_disk(), {save_path(GetParam())}};
  const Content masters = read_content(*kDeepSpeedFormat.open(source, {}));
  const Content copies = read_content(*kDeepSpeedFormat.open(source, of_module()));
  ASSERT_EQ(masters.size(), copies.size());
  int compared = 0;
  for (const auto& [name, copy] : copies) {
    if (copy.dtype != DType::kBfloat16 || masters.at(name).dtype != DType::kFloat32) continue;
    EXPECT_EQ(rounded_to_bfloat16(masters.at(name).bytes), copy.bytes) << name;
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

INSTANTIATE_TEST_SUITE_P(Saves, DeepSpeedHalves,
                         ::testing::Values("stage1_frozen", "stage2_tied", "stage2_robin", "stage1_aligned"));

TEST(DeepSpeed, TheFolderWhoseLatestNamesTheSaveIsRead) {
  EXPECT_EQ(open_checkpoint(posix_disk(), save_path("stage2_tied"))->catalog().world_size, 3);
}

TEST(DeepSpeed, SharedParametersAreAliases) {
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), save_path("stage2_tied"));
  const Catalog& catalog = reader->catalog();
  const Tensor& head = *catalog.find("head.weight");
  ASSERT_NE(head.alias_of, kNoIndex);
  EXPECT_EQ(catalog.tensors[head.alias_of].name, "embed.weight");
}

TEST(DeepSpeed, WhatIsNotSpreadOverRanksIsAnObject) {
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), save_path("stage1"));
  const auto object = [&](std::string_view name) -> const Value* {
    for (const Object& each : reader->catalog().objects) {
      if (each.name == name) return each.value;
    }
    return nullptr;
  };
  ASSERT_NE(object("global_steps"), nullptr);
  EXPECT_EQ(object("global_steps")->number, 2);
  ASSERT_NE(object("optimizer.base_optimizer_state.state.0.step"), nullptr);
  EXPECT_EQ(object("optimizer.base_optimizer_state.state.0.step")->real, 2);
  ASSERT_NE(object("optimizer.base_optimizer_state.param_groups.0.lr"), nullptr);
  EXPECT_EQ(object("module.a.weight"), nullptr);
}

TEST(DeepSpeed, TheModulesOwnWeights) {
  const Source source{&posix_disk(), {save_path("stage2_tied")}};
  const std::unique_ptr<Reader> reader = kDeepSpeedFormat.open(source, of_module());
  EXPECT_EQ(reader->catalog().find("a.weight")->dtype, DType::kBfloat16);
  EXPECT_NE(reader->catalog().find("optimizer.state.a.weight.exp_avg"), nullptr);
  const Source parted{&posix_disk(), {save_path("stage3")}};
  EXPECT_EQ(test::error_of([&] { kDeepSpeedFormat.open(parted, of_module()); }).code(), ErrorCode::kUnsupported);
}

/// Forms of other versions, derived from a save of 0.18.2. \pre take_all("stage1")
class OtherForms : public DamagedSave {
 protected:
  void SetUp() override { take_all("stage1"); }
  void expect_the_same() {
    const Content truth = read_content(*open_checkpoint(posix_disk(), save_path("stage1.safetensors")));
    EXPECT_EQ(read_content(*open()), truth);
  }
};

TEST_F(OtherForms, StatesInAListAsBefore0510) {
  edit_optimizers(list_states);
  expect_the_same();
}

TEST_F(OtherForms, ShapesInTheOptimizersFilesAsBefore06) {
  edit(kStage1Model, [](Arena& arena, Value& root) { set(root, "param_shapes", make_value(arena, ValueKind::kNone)); });
  const std::pair<const char*, std::vector<std::int64_t>> shapes[] = {
      {"embed.weight", {7, 5}}, {"a.weight", {3, 5}}, {"a.bias", {3}},        {"norm.weight", {3}},
      {"norm.bias", {3}},       {"b.weight", {5, 3}}, {"head.weight", {7, 5}}};
  edit_optimizers([&](Arena& arena, Value& root) {
    std::vector<Value*> items;
    for (const auto& [name, shape] : shapes) {
      std::vector<Value*> sizes;
      for (const std::int64_t size : shape) sizes.push_back(make_int(arena, size));
      items.insert(items.end(), {make_string(arena, name), make_list(arena, ValueKind::kTuple, sizes)});
    }
    std::vector<Value*> all(root.items().begin(), root.items().end());
    all.insert(all.end(), {make_string(arena, "param_shapes"), make_list(arena, ValueKind::kDict, items)});
    root = *make_list(arena, ValueKind::kDict, all);
  });
  expect_the_same();
}

TEST_F(OtherForms, WithoutAStageAsOfBf16Optimizer) {
  edit_optimizers(forget_stage);
  expect_the_same();
}

/// Sets the stage to getattr(ZeroStageEnum, `member`).
std::function<void(Arena&, Value&)> stage_by_name(std::string_view member) {
  return [member](Arena& arena, Value& root) {
    const std::array<Value*, 2> arguments{make_global(arena, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
                                          make_string(arena, member)};
    Value* const stage = make_call(arena, make_global(arena, "builtins", "getattr"), arguments);
    set(*find_key(root, "optimizer_state_dict"), "zero_stage", stage);
  };
}

TEST_F(OtherForms, StageByNameAsOfPython3110) {
  edit_optimizers(stage_by_name("optimizer_states"));
  expect_the_same();
  edit_optimizers(stage_by_name("disabled"));
  expect_refused(ErrorCode::kCorruption, FindingKind::kBadPickle, "zero_stage: it is not 1, 2 or 3");
}

TEST_F(OtherForms, WithoutShapesTheMappingsTellTheOrder) {
  edit(kStage1Model, [](Arena& arena, Value& root) { set(root, "param_shapes", make_value(arena, ValueKind::kNone)); });
  edit_optimizers(forget_stage);
  expect_the_same();
}

TEST_F(OtherForms, StepsThatDifferAreOfTwoSaves) {
  edit(kStage1Optimizers[1], [](Arena& arena, Value& root) {
    Value* const group = mapping_items(*find_key(in_optimizer(root, "base_optimizer_state"), "state"))[1];
    set(*group, "step", make_int(arena, 3));
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kMixedSave, kStage1Optimizers[1]);
}

TEST_F(OtherForms, PartitionCountsOfAnotherNumberOfGroups) {
  const auto with_counts = [](Arena& arena, Value& root) {
    in_optimizer(root, "partition_count") =
        *make_list(arena, ValueKind::kList, std::array{make_int(arena, 2), make_int(arena, 2)});
  };
  edit_optimizers(with_counts);
  expect_refused(ErrorCode::kCorruption, FindingKind::kWorldSizeMismatch, "partition_count of group 0");
  SetUp();
  edit(kStage1Optimizers[1], with_counts);
  expect_refused(ErrorCode::kCorruption, FindingKind::kMixedSave, "partition counts differ");
}

TEST_F(OtherForms, GroupsOnFewerRanksAreThoseOfExperts) {
  edit_optimizers([](Arena& arena, Value& root) {
    in_optimizer(root, "partition_count") =
        *make_list(arena, ValueKind::kList, std::array{make_int(arena, 2), make_int(arena, 1)});
  });
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(found.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReadCopies}));
  const std::unique_ptr<Reader> reader = kDeepSpeedFormat.open({disk_.get(), {"/s"}}, of_module());
  EXPECT_NE(reader->catalog().find("a.weight"), nullptr);
}

/// With parameter_alignment, 0.19 lets each parameter begin at a multiple of 16 bytes.
TEST_F(OtherForms, PaddingBetweenParametersIsNotTheirs) {
  const auto with_paddings = [](std::array<std::int64_t, 7> paddings) {
    return [paddings](Arena& arena, Value& root) {
      std::vector<Value*> numbers;
      for (const std::int64_t padding : paddings) numbers.push_back(make_int(arena, padding));
      Value* const group = make_list(arena, ValueKind::kList, numbers);
      Value& zero = *find_key(root, "optimizer_state_dict");
      std::vector<Value*> items(zero.items().begin(), zero.items().end());
      items.insert(items.end(), {make_string(arena, "param_alignment_paddings"),
                                 make_list(arena, ValueKind::kList, std::array{group})});
      set(root, "optimizer_state_dict", make_list(arena, ValueKind::kDict, items));
    };
  };
  edit_optimizers(with_paddings({}));
  expect_the_same();
  SetUp();
  edit_optimizers(with_paddings({3, 0, 0, 0, 0, 0, 0}));
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "param_alignment_paddings of group 0");
  SetUp();
  edit(kStage1Optimizers[1], with_paddings({}));
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, kStage1Optimizers[1]);
}

TEST_F(OtherForms, ASharedNameWithoutItsParameter) {
  edit(kStage1Model, [](Arena& arena, Value& root) {
    const std::array pair{make_string(arena, "x"), make_string(arena, "nothing")};
    set(root, "shared_params", make_list(arena, ValueKind::kDict, pair));
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kIndexMismatch, "nothing");
}

TEST_F(OtherForms, AParameterThatIsFrozenToo) {
  edit(kStage1Model, [](Arena& arena, Value& root) {
    Value* const module = find_key(root, "module");
    const std::array shape{make_string(arena, "a.bias"),
                           make_list(arena, ValueKind::kTuple, std::array{make_int(arena, 3)})};
    const std::array part{make_string(arena, "a.bias"), find_key(*module, "a.bias")};
    set(root, "frozen_param_shapes", make_list(arena, ValueKind::kDict, shape));
    set(root, "frozen_param_fragments", make_list(arena, ValueKind::kDict, part));
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kDuplicateName, "a.bias");
}

/// A save without one of its files, or with a file of another save.
struct WrongFiles {
  const char* what;
  const char* save;
  const char* removed;
  const char* from;  ///< The save of the added file; null: none is added.
  const char* file;
  const char* as;
  ErrorCode code;
  FindingKind kind;
  const char* words;
};

TEST_F(DamagedSave, FilesThatAreNotOneSaveAreNamed) {
  constexpr auto kAbsent = ErrorCode::kNotFound, kBad = ErrorCode::kCorruption;
  constexpr auto kMissing = FindingKind::kMissingFile;
  const char* const second = "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const char* const model = "mp_rank_00_model_states.pt";
  const WrongFiles table[] = {
      {"a rank in the middle is missing", "stage2_tied", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", nullptr, "",
       "", kAbsent, kMissing, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"},
      {"the last rank is missing", "stage2_tied", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", nullptr, "", "",
       kAbsent, kMissing, "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"},
      {"a model file of stage 3 is missing", "stage3_groups", "zero_pp_rank_2_mp_rank_00_model_states.pt", nullptr, "",
       "", kAbsent, kMissing, "zero_pp_rank_2_mp_rank_00_model_states.pt"},
      {"the model file is missing", "stage1", model, nullptr, "", "", kAbsent, kMissing, "model's states"},
      {"a rank too many", "stage1", "", "stage1", second, "zero_pp_rank_2_mp_rank_00_optim_states.pt", kBad,
       FindingKind::kWorldSizeMismatch, "zero_pp_rank_2_mp_rank_00_optim_states.pt"},
      {"two files of a rank", "stage1", "", "stage1", second, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", kBad,
       FindingKind::kExtraFile, "rank 1"},
      {"a file of a save of other ranks", "stage2_robin", "", "stage2_tied",
       "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "", kBad, FindingKind::kWorldSizeMismatch,
       "bf16_zero_pp_rank_1"},
      {"a file of another stage", "stage1", "", "stage3", second, "", kBad, FindingKind::kMixedSave, "zero_pp_rank_1"},
      {"optimizer files of a model-parallel rank are missing", "stage1", "", "stage1", model,
       "mp_rank_01_model_states.pt", kAbsent, kMissing, "optimizer states"},
  };
  for (const WrongFiles& each : table) {
    SCOPED_TRACE(each.what);
    files_.clear();
    take_all(each.save);
    files_.erase(each.removed);
    if (each.from != nullptr) take(each.from, each.file, each.as);
    expect_refused(each.code, each.kind, each.words);
  }
  files_.clear();
  take("stage2_tied", model);
  expect_refused(kAbsent, kMissing, "optimizer states");
}

TEST_F(DamagedSave, OfStage3TheModelFilesOfAllRanksButOneAreMissing) {
  take_all("stage3_groups");
  std::erase_if(files_, [](const auto& file) {
    return file.first.ends_with("_model_states.pt") && !file.first.starts_with("zero_pp_rank_0_");
  });
  expect_refused(ErrorCode::kNotFound, FindingKind::kMissingFile, "zero_pp_rank_1_mp_rank_00_model_states.pt");
}

TEST_F(DamagedSave, ABufferOfAnotherLength) {
  take_all("stage1");
  edit(kStage1Model, [](Arena& arena, Value& root) {
    Value* const first = mapping_items(*find_key(root, "param_shapes")->items()[0])[1];
    first->items()[0]->items()[0] = make_int(arena, 8);  // 8 x 5 instead of 7 x 5.
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
}

TEST_F(DamagedSave, ModelParallelFilesWithoutRulesAreRefused) {
  take_all("stage1");
  for (const char* file : {"mp_rank_0#_model_states.pt", "zero_pp_rank_0_mp_rank_0#_optim_states.pt",
                           "zero_pp_rank_1_mp_rank_0#_optim_states.pt"}) {
    std::string from(file), as(file);
    from[from.find('#')] = '0';
    as[as.find('#')] = '1';
    take("stage1", from, as);
  }
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(std::string(found.what()), HasSubstr("several model-parallel ranks"));
}

TEST_F(DamagedSave, KindsThatAreNotJoinedAreNamed) {
  const std::pair<const char*, const char*> kinds[] = {
      {"layer_00-model_00-seq_00-model_states.pt", "layers with unknown numbers of ranks"},
      {"offloaded_tensors", "offloaded to disk"},
      {"mp_rank_00_model_states.pt-0.2", "several pieces"}};
  for (const auto& [name, words] : kinds) {
    files_.clear();
    take_all("stage1");
    files_[name] = "x";
    const Error found = error();
    EXPECT_EQ(found.code(), ErrorCode::kUnsupported) << name;
    EXPECT_THAT(found.what(), HasSubstr(words));
    EXPECT_EQ(found.hint().empty(), !std::string_view(name).ends_with(".pt"))
        << name;  // Whole files can be read alone.
  }
}

/// Parameters and states of all ranks, as the engine has them; `save` has more states, which the truth lacks.
void expect_truth(const std::string& save) {
  const Content truth = read_content(*open_checkpoint(posix_disk(), save_path(save) + ".safetensors"));
  const Content content = read_content(*open_checkpoint(posix_disk(), save_path(save)));
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(content.contains(name)) << name;
    EXPECT_EQ(content.at(name), tensor) << name;
  }
  for (const auto& [name, tensor] : content) {
    EXPECT_TRUE(name.starts_with("optimizer.state.") || truth.contains(name)) << name;
  }
}

TEST(DeepSpeed, ExpertsOfAllRanksHaveTheirNumbersInTheModel) { expect_truth("experts_stage2"); }

TEST(DeepSpeed, LayersOfAllStagesOfAPipelineAreRead) { expect_truth("pipeline_stage1"); }

TEST(DeepSpeed, TheModulesOwnWeightsOfExpertsAndStages) {
  for (const char* save : {"experts_stage2", "pipeline_stage1"}) {
    const Source source{&posix_disk(), {save_path(save)}};
    const Content masters = read_content(*kDeepSpeedFormat.open(source, {}));
    const Content copies = read_content(*kDeepSpeedFormat.open(source, of_module()));
    EXPECT_EQ(masters.size(), copies.size());
    for (const auto& [name, copy] : copies) {
      ASSERT_TRUE(masters.contains(name)) << name;
      const std::vector<std::byte>& bytes = masters.at(name).bytes;
      const bool is_half = copy.dtype == DType::kBfloat16 && masters.at(name).dtype == DType::kFloat32;
      EXPECT_EQ(copy.bytes, is_half ? rounded_to_bfloat16(bytes) : bytes) << name;
    }
  }
}

TEST(DeepSpeed, ASharedLayerIsAReplicaInEachOfItsStages) {
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), save_path("pipeline_stage1"));
  const Tensor* const shared = reader->catalog().find("tied_modules.embed.weight");
  ASSERT_NE(shared, nullptr);
  std::vector<std::int64_t> rows;
  for (const Chunk& chunk : reader->catalog().chunks_of(*shared)) rows.push_back(chunk.offsets[0]);
  EXPECT_EQ(std::ranges::count(rows, 0), 2);
}

TEST(DeepSpeed, ExpertsAndPipelinesAreNotWritten) {
  for (const char* save : {"experts_stage2", "pipeline_stage1"}) {
    for (const Format* format : {&kDeepSpeedFormat, &kDeepSpeedUniversalFormat}) {
      const Error error = test::error_of([&] {
        format->rewrite({&posix_disk(), {save_path(save)}}, {}, RewriteOptions{});
      });
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << save;
      EXPECT_THAT(error.what(), HasSubstr("experts or the layers of a pipeline"));
    }
  }
}

TEST_F(DamagedSave, OptimizersOfExpertsThatAreNotReadLeaveTheModulesWeights) {
  const auto refused = [&] {
    const Error found = error();
    EXPECT_THAT(found.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReadCopies})) << found.what();
    const std::unique_ptr<Reader> reader = kDeepSpeedFormat.open({disk_.get(), {"/s"}}, of_module());
    EXPECT_NE(reader->catalog().find("blocks.1.moe.deepspeed_moe.experts.deepspeed_experts.3.up.bias"), nullptr);
    return found.code();
  };
  take_all("experts_stage2");
  edit(kStage1Model, [](Arena& arena, Value& root) {
    set(root, "ds_autoep_layers", make_list(arena, ValueKind::kList, std::array{make_int(arena, 1)}));
  });
  EXPECT_EQ(refused(), ErrorCode::kUnsupported);
  take_all("experts_stage2");
  edit(kStage1Model, [](Arena& arena, Value& root) { set(root, "param_shapes", make_value(arena, ValueKind::kNone)); });
  EXPECT_EQ(refused(), ErrorCode::kUnsupported);
}

TEST_F(DamagedSave, FilesOfExpertsAndLayersThatAreMissingAreNamed) {
  const std::pair<const char*, const char*> missing[] = {
      {"experts_stage2", "layer_1_expert_2_mp_rank_00_model_states.pt"},
      {"pipeline_stage1", "layer_03-model_00-model_states.pt"}};
  for (const auto& [save, name] : missing) {
    files_.clear();
    take_all(save);
    EXPECT_EQ(files_.erase(name), 1U);
    expect_refused(ErrorCode::kNotFound, FindingKind::kMissingFile, name);
  }
}

TEST_F(DamagedSave, ExpertsThatRanksCannotShareAreRefused) {
  take_all("experts_stage2");
  for (const std::string layer : {"0", "1"}) files_.erase("layer_" + layer + "_expert_3_mp_rank_00_model_states.pt");
  edit(kStage1Model, [](Arena& arena, Value& root) { set(root, "num_experts", make_value(arena, ValueKind::kNone)); });
  expect_refused(ErrorCode::kCorruption, FindingKind::kIndexMismatch, "the files of experts are not those of 2 ranks");
}

TEST_F(DamagedSave, FilesOfLayersAndExpertsOfUnknownRanksAreRefused) {
  take_all("pipeline_stage1");
  take("pipeline_stage1", "layer_03-model_00-model_states.pt", "layer_03-model_01-model_states.pt");
  expect_refused(ErrorCode::kCorruption, FindingKind::kWorldSizeMismatch, "different numbers of ranks");
  files_.clear();
  take_all("experts_stage2");
  take("experts_stage2", "layer_0_expert_0_mp_rank_00_model_states.pt", "layer_0_expert_0_mp_rank_01_model_states.pt");
  expect_refused(ErrorCode::kNotFound, FindingKind::kMissingFile, "the file of the model's states is missing");
  files_.clear();
  take_all("experts_stage2");
  take("experts_stage2", kStage1Model, "expp_rank_1_mp_rank_00_optim_states.pt");
  expect_refused(ErrorCode::kNotFound, FindingKind::kMissingFile, "expp_rank_0_mp_rank_00_optim_states.pt");
}

TEST_F(DamagedSave, LayersOfTheFormOfASharedOneHaveItsValues) {
  take_all("pipeline_stage1");
  const char* const second = "layer_06-model_00-model_states.pt";
  take("pipeline_stage1", "layer_00-model_00-model_states.pt", second);
  edit(second, [](Arena&, Value&) {});  // Removes the name that the zip was saved under.
  open();
  const Content content = read_content(*kDeepSpeedFormat.open({disk_.get(), {"/s"}}, of_module()));
  EXPECT_FALSE(content.contains("6.weight"));
  const std::vector<std::byte>& shared = content.at("tied_modules.embed.weight").bytes;
  const std::size_t at = files_.at(second).find(test::as_text(shared));
  ASSERT_NE(at, std::string::npos);
  files_.at(second)[at] ^= 1;
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(found.why(), "layers 0 and 6 have its names and shapes, and different values");
}

TEST_F(DamagedSave, APipelineWithoutZeroHasTheOptimizersOfAllStages) {
  take_all("pipeline_stage1");
  std::erase_if(files_, [](const auto& file) { return file.first.find("optim_states") != std::string::npos; });
  for (const char* file : {"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"}) {
    edit(file, [](Arena& arena, Value& root) {
      set(root, "param_shapes", make_value(arena, ValueKind::kNone));
      set(root, "ds_config", make_list(arena, ValueKind::kDict, {}));
      set(root, "optimizer",
          make_list(arena, ValueKind::kDict, std::array{make_string(arena, "lr"), make_int(arena, 5)}));
    });
  }
  const std::unique_ptr<Reader> reader = open();
  EXPECT_NE(reader->catalog().find("3.weight"), nullptr);
  EXPECT_NE(reader->catalog().find("0.weight"), nullptr);  // Its key is unknown.
  EXPECT_EQ(reader->catalog().find("tied_modules.embed.weight"), nullptr);
  std::vector<std::string_view> names;
  for (const Object& object : reader->catalog().objects) names.push_back(object.name);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"optimizer.lr", "optimizer.mp_rank_01.lr"}));
}

/// FP16_UnfusedOptimizer, which DeepSpeed 0.18 uses for bfloat16 with stage 1 and accumulation in float32.
TEST_F(DamagedSave, AnOptimizerWithoutZeroIsNamedAndTheModulesWeightsAreRead) {
  take_all("stage1");
  edit_optimizers([](Arena& arena, Value& root) {
    Value* const list = make_list(arena, ValueKind::kList, {});
    set(root, "optimizer_state_dict",
        make_list(arena, ValueKind::kDict, std::array{make_string(arena, "fp32_groups"), list}));
  });
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(found.what(), HasSubstr("whose weights have no names"));
  EXPECT_THAT(found.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReadCopies}));
  const std::unique_ptr<Reader> reader = kDeepSpeedFormat.open({disk_.get(), {"/s"}}, of_module());
  EXPECT_NE(reader->catalog().find("a.weight"), nullptr);
  EXPECT_THAT(reader->catalog().warnings, ::testing::Contains(HasSubstr("the optimizer's states are skipped")));
}

TEST_F(DamagedSave, OneGroupOfMicsIsNamed) {
  take_all("stage3");
  for (const char* file : {"zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"}) {
    edit(file, [](Arena& arena, Value& root) {
      set(root, "dp_world_size", make_int(arena, 4));
      Value& zero = *find_key(*find_key(root, "ds_config"), "zero_optimization");
      std::vector<Value*> items(mapping_items(zero).begin(), mapping_items(zero).end());
      items.insert(items.end(), {make_string(arena, "mics_shard_size"), make_int(arena, 2)});
      zero = *make_list(arena, ValueKind::kDict, items);
    });
  }
  const Error found = error();
  EXPECT_EQ(found.code(), ErrorCode::kUnsupported) << found.what();
  EXPECT_THAT(found.what(), HasSubstr("MiCS"));
}

TEST_F(DamagedSave, AnotherPartitionCountIsOfAnotherSave) {
  take_all("stage3");
  edit("zero_pp_rank_1_mp_rank_00_optim_states.pt", [](Arena& arena, Value& root) {
    set(*find_key(root, "optimizer_state_dict"), "partition_count", make_int(arena, 3));
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kWorldSizeMismatch, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
}

TEST_F(DamagedSave, EveryCutIsRefused) {
  take_all("stage1");
  const std::string file = "zero_pp_rank_1_mp_rank_00_optim_states.pt", whole = files_.at(file);
  for (std::size_t cut = 0; cut < whole.size(); cut += 97) {
    files_[file] = whole.substr(0, cut);
    EXPECT_EQ(error().code(), ErrorCode::kCorruption) << cut;
  }
}

}  // namespace
}  // namespace shard
