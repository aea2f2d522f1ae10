// Saves rewritten for other ranks, or as universal checkpoints: their content, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/groups.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/deepspeed_saves.h"

namespace shard {
namespace {

using deepspeed::NewGroups;
using deepspeed::ParamGroup;
using deepspeed::Save;
using testing::Content;
using ::testing::ElementsAre;
using testing::forget_stage;
using testing::in_optimizer;
using testing::kStage1Model;
using testing::kStage1Optimizers;
using testing::list_states;
using testing::open_checkpoint;
using testing::read_content;
using testing::save_path;
using testing::set;

// Groups

/// A save with the configuration that regroup requires.
class Groups : public ::testing::Test {
 protected:
  Save save(int ranks, int stage) {
    Save made;
    made.models.emplace_back().stage = stage;
    made.optimizers.resize(static_cast<std::size_t>(ranks));
    for (auto& rank : made.optimizers) rank.stage = stage;
    return made;
  }
  ParamGroup group(std::initializer_list<std::int64_t> sizes) {
    ParamGroup params;
    for (const std::int64_t size : sizes) {
      params.push_back({arena_.copy("p" + std::to_string(next_++)), arena_.dims(std::array{size})});
    }
    return params;
  }
  static std::vector<std::vector<std::string>> names(const NewGroups& made) {
    std::vector<std::vector<std::string>> all;
    for (const deepspeed::NewGroup& each : made.groups) {
      all.emplace_back();
      for (const deepspeed::ParamShape& param : each.params) all.back().emplace_back(param.name);
    }
    return all;
  }

  Arena arena_;
  int next_ = 0;
};

TEST_F(Groups, RoundRobinDealsOutAnew) {
  Save two = save(2, 2);
  two.models.front().round_robin = true;
  // The engine had p0, p2, p4, p1, p3 in this order, which is the order for 2 ranks.
  const NewGroups made = regroup(two, {group({1, 1, 1, 1, 1})}, 3);
  // In the model's order that is p0, p3, p1, p4, p2; dealt to three: first and fourth, second and fifth, third.
  EXPECT_THAT(names(made), ElementsAre(ElementsAre("p0", "p4", "p3", "p2", "p1")));
  EXPECT_TRUE(made.differ);
  two.models.front().aligned_params = true;  // Other neighbours would have other padding between them.
  EXPECT_EQ(test::error_of([&] { regroup(two, {group({1})}, 3); }).code(), ErrorCode::kUnsupported);
}

TEST_F(Groups, SubGroupsAreCutByWhatOneRankHolds) {
  Save two = save(2, 3);
  two.models.front().sub_group_size = 10;
  two.optimizers.front().members = {{0, 1}};
  // Parts of 2 ranks: 6, 4 | 5; of 4: 3, 2, 3, together less than 10.
  const NewGroups made = regroup(two, {group({12, 8}), group({10})}, 4);
  EXPECT_THAT(names(made), ElementsAre(ElementsAre("p0", "p1", "p2")));
  EXPECT_THAT(made.groups.front().from, ElementsAre(0, 1));
  EXPECT_THAT(made.members, ElementsAre(ElementsAre(0)));
}

TEST_F(Groups, SubGroupsOfTwoGroupsStayApart) {
  Save two = save(2, 3);
  two.optimizers.front().members = {{0}, {1}};
  EXPECT_THAT(names(regroup(two, {group({3}), group({4})}, 5)), ElementsAre(ElementsAre("p0"), ElementsAre("p1")));
}

TEST_F(Groups, OtherSubGroupsThanTheConfigurationMakesAreRefused) {
  Save two = save(2, 3);
  two.optimizers.front().members = {{0, 1}};
  EXPECT_EQ(test::error_of([&] { regroup(two, {group({3}), group({4})}, 3); }).code(), ErrorCode::kUnsupported);
}

TEST_F(Groups, AConfigurationThatIsNotPlainDataIsRefused) {
  const Save unknown = save(2, -1);
  EXPECT_EQ(test::error_of([&] { regroup(unknown, {group({3})}, 3); }).code(), ErrorCode::kUnsupported);
  EXPECT_FALSE(regroup(unknown, {group({3})}, 2).differ);
}

// Saves

class Remade : public testing::RemadeSave {
 protected:
  Content truth() { return read_content(*open()); }
  void expect_the_same() {
    const Content expected = truth();
    for (const std::int64_t ranks : {1, 3, 8}) {
      EXPECT_EQ(read_content(*remade(kDeepSpeedFormat, {.ranks = ranks})), expected) << ranks;
    }
  }
};

TEST_F(Remade, SavesOfAllStagesHoldTheSameForAnyNumberOfRanks) {
  for (const char* name :
       {"stage1", "stage1_aligned", "stage1_frozen", "stage2_tied", "stage2_robin", "stage3", "stage3_groups"}) {
    SCOPED_TRACE(name);
    files_.clear();
    take_all(name);
    expect_the_same();
    EXPECT_EQ(read_content(*remade(kDeepSpeedUniversalFormat, {})), truth());
  }
}

TEST_F(Remade, AUniversalCheckpointWithFilesOfLayersNamesThem) {
  take_all("stage1");
  remade(kDeepSpeedUniversalFormat, {});
  state_->put("/out/s/layer_00-model_00-model_states.pt", test::as_span(files_.at(testing::kStage1Model)));
  const Source source{disk_.get(), {"/out"}};
  EXPECT_THAT(kDeepSpeedUniversalFormat.open(source, {})->catalog().warnings,
              ::testing::Contains(::testing::HasSubstr("layers are skipped")));
  OpenOptions of_module;
  of_module.choices["weights"] = "16bit";
  EXPECT_EQ(test::error_of([&] { kDeepSpeedUniversalFormat.open(source, of_module); }).code(), ErrorCode::kUnsupported);
}

TEST_F(Remade, StatesInAListStayOne) {
  take_all("stage1");
  edit_optimizers(list_states);
  expect_the_same();
  EXPECT_EQ(refusal(kDeepSpeedUniversalFormat, {}).code(), ErrorCode::kUnsupported);
}

TEST_F(Remade, WithoutAStageMastersArePadded) {
  take_all("stage1");
  edit_optimizers(forget_stage);
  expect_the_same();
  const std::unique_ptr<Reader> reader = remade(kDeepSpeedFormat, {.ranks = 8});
  // 109 elements in 8 slices of 14: the last one's masters have 11 elements.
  const std::unique_ptr<Reader> last =
      open_checkpoint(*disk_, "/out/s/zero_pp_rank_7_mp_rank_00_optim_states.pt", "torch");
  EXPECT_EQ(last->catalog().find("optimizer_state_dict.single_partition_of_fp32_groups.0")->shape[0], 14);
}

TEST_F(Remade, ASaveWithoutRanksKeepsItsModule) {
  take("stage1", kStage1Model);
  edit(kStage1Model, [](Arena& arena, Value& root) {
    Value* const config = find_key(*find_key(root, "ds_config"), "zero_optimization");
    set(*config, "stage", make_int(arena, 0));
  });
  expect_the_same();
}

TEST_F(Remade, AStateThatRankZeroDoesNotHaveIsRefused) {
  take_all("stage1");
  edit(kStage1Optimizers[0], [](Arena& arena, Value& root) {
    Value* const base = &in_optimizer(root, "base_optimizer_state");
    set(*base, "state", make_list(arena, ValueKind::kDict, {}));
  });
  EXPECT_EQ(refusal(kDeepSpeedFormat, {.ranks = 3}).code(), ErrorCode::kCorruption);
}

TEST_F(Remade, FragmentsOfAnotherKindAreRefused) {
  take_all("stage1");
  edit_optimizers([](Arena& arena, Value& root) {
    Value* const group = in_optimizer(root, "param_slice_mappings").items()[0];
    mapping_items(*group)[1] = make_int(arena, 7);
  });
  EXPECT_EQ(refusal(kDeepSpeedFormat, {.ranks = 3}).code(), ErrorCode::kCorruption);
}

TEST_F(Remade, EveryFailingCallLeavesNothing) {
  take_all("stage3");
  const Content expected = truth();
  for (const Format* format : {&kDeepSpeedFormat, &kDeepSpeedUniversalFormat}) {
    bool is_done = false;
    for (std::int64_t call = 0; !is_done; ++call) {
      ASSERT_LT(call, 5000);
      open();
      state_->fail_at(state_->calls() + call);
      try {
        rewrite(*format, {});
        state_->fail_at(-1);
        EXPECT_EQ(read_content(*open_checkpoint(*disk_, "/out")), expected);
        is_done = true;
      } catch (const Error& error) {
        state_->fail_at(-1);
        EXPECT_THAT(error.code(), ::testing::AnyOf(ErrorCode::kResource, ErrorCode::kNotFound)) << error.what();
        EXPECT_EQ(disk_->status("/out").kind, FileKind::kAbsent) << "call " << call;
      }
    }
  }
}

TEST_F(Remade, AUniversalCheckpointHasNoRanks) {
  take_all("stage1");
  EXPECT_EQ(refusal(kDeepSpeedUniversalFormat, {.ranks = 3}).code(), ErrorCode::kInvalidArgument);
}

// The output of the real DeepSpeed's ds_to_universal.

TEST(Universal, HoldsWhatTheEngineHeld) {
  for (const char* name : {"stage1", "stage3"}) {
    const Content truth = read_content(*open_checkpoint(posix_disk(), save_path(name) + ".safetensors"));
    const std::string folder = save_path(std::string("universal_of_") + name);
    for (const std::string& path : {folder, folder + "/global_step2"}) {
      const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), path);
      EXPECT_EQ(reader->catalog().format, "deepspeed-universal");
      EXPECT_EQ(read_content(*reader), truth) << path;
    }
  }
}

}  // namespace
}  // namespace shard
