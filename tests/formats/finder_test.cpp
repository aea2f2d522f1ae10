// Folders above checkpoints, as trainers leave them, made from the golden checkpoints.
#include "formats/finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/detect.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/bytes_file.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Suggestion read_folder(const std::string& path) { return {Remedy::kReadFolder, path}; }
Suggestion read_files(const std::string& pattern) { return {Remedy::kReadFiles, pattern}; }

class FolderAbove : public ::testing::Test {
 protected:
  const std::string kGolden = "golden/2.11.0/";

  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }
  void copy_file(const std::string& name, const std::string& path) { put(path, testing::golden(kGolden + name)); }
  void copy_folder(const std::string& name, const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(SHARD_TEST_DATA) + "/" + kGolden + name)) {
      const std::string file = entry.path().filename().string();
      copy_file(name + "/" + file, folder + "/" + file);
    }
  }
  /// verl's files of one model: two ranks' files of three kinds, and a folder without weights.
  void put_verl(const std::string& folder) {
    for (const std::string rank : {"0", "1"}) {
      const std::string end = "_world_size_2_rank_" + rank + ".pt";
      copy_file("ranks_dtensor_r2/model" + end, folder + "/model" + end);
      copy_file("ranks_dtensor_r2/model" + end, folder + "/optim" + end);
      copy_file("numpy.pt", folder + "/extra_state" + end);
    }
    put(folder + "/fsdp_config.json", R"({"FSDP_version": 2, "world_size": 2})");
    put(folder + "/huggingface/config.json", "{}");
  }
  Error refused(const std::string& path) {
    const Error error = test::error_of([&] { detect_format({fs.get(), {path}}); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("is not a checkpoint in any known format"));
    return error;
  }
  std::vector<Suggestion> suggested(const std::string& path) { return refused(path).suggestions(); }
  std::string detected(const std::vector<std::string>& paths) {
    return std::string(detect_format({fs.get(), paths}).traits.name);
  }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(FolderAbove, AnInterruptedSearchIsNoFolderWithoutCheckpoints) {
  put("/run/a/model.pt", "");
  const auto interrupted = [](const Source&) -> bool { throw Error(ErrorCode::kInterrupted, "stopped"); };
  const Error error = test::error_of([&] { find_checkpoints({fs.get(), {"/run"}}, interrupted, interrupted); });
  EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
}

TEST_F(FolderAbove, ATrainersCheckpointHoldsTheModelAndTheOptimizerAsDcp) {
  copy_folder("dcp_plain_r2", "/run/checkpoint-20/optimizer_0");
  copy_folder("dcp_plain_r2", "/run/checkpoint-20/pytorch_model_fsdp_0");
  for (const char* name : {"scheduler.pt", "training_args.bin", "rng_state_0.pth", "rng_state_1.pth"}) {
    copy_file("plain.pt", std::string("/run/checkpoint-20/") + name);
  }
  put("/run/checkpoint-20/trainer_state.json", "{}");
  const Error error = refused("/run/checkpoint-20");
  EXPECT_THAT(error.suggestions(), ElementsAre(read_folder("/run/checkpoint-20/pytorch_model_fsdp_0"),
                                               read_folder("/run/checkpoint-20/optimizer_0")));
  EXPECT_EQ(error.why(), "it contains several: pytorch_model_fsdp_0, optimizer_0");
  EXPECT_EQ(detected({"/run/checkpoint-20/pytorch_model_fsdp_0"}), "dcp");
}

TEST_F(FolderAbove, ARunHoldsItsStepsTheLastOneFirst) {
  for (const char* step : {"step-200", "step-1000", "step-900"}) {
    copy_folder("dcp_plain_r2", std::string("/out/checkpoint/") + step);
  }
  EXPECT_THAT(suggested("/out/checkpoint"),
              ElementsAre(read_folder("/out/checkpoint/step-1000"), read_folder("/out/checkpoint/step-900"),
                          read_folder("/out/checkpoint/step-200")));
  EXPECT_EQ(suggested("/out").size(), 3U);
}

TEST_F(FolderAbove, ARepairAlsoFindsADamagedOneByTheNamesOfItsFiles) {
  copy_folder("dcp_plain_r2", "/run/step-900");
  put("/run/step-1000/model.safetensors", "cut");
  put("/run/step-1000/notes.txt", "no tensors");
  const Source run{fs.get(), {"/run"}};
  const auto found = [&](SearchFor search) {
    std::vector<std::string> paths;
    for (const FoundCheckpoint& each : recognise(run, search).below) paths.push_back(each.path);
    return paths;
  };
  EXPECT_THAT(found(SearchFor::kIntact), ElementsAre("/run/step-900"));
  EXPECT_THAT(found(SearchFor::kDamagedToo), ElementsAre("/run/step-1000", "/run/step-900"));
  EXPECT_EQ(test::error_of([&] { detect_format(run, SearchFor::kDamagedToo); }).suggestions().size(), 2U);
}

TEST_F(FolderAbove, TwoFoldersDownIsAsFarAsItLooks) {
  copy_folder("dcp_plain_r2", "/a/b/c/d");
  EXPECT_THAT(suggested("/a/b"), ElementsAre(read_folder("/a/b/c/d")));
  const Error error = refused("/a");
  EXPECT_THAT(error.suggestions(), IsEmpty());
  EXPECT_THAT(error.why(), HasSubstr("the content matches none of: safetensors"));
}

TEST_F(FolderAbove, FoldersOfStagesAndSlicesAreNoLevels) {
  const std::string model = "/run/step_10/model/pp_00/tp_00";
  for (const std::string rank : {"0", "1"}) {
    const std::string file = "ranks_dtensor_r2/model_world_size_2_rank_" + rank + ".pt";
    copy_file(file, model + "/sdp_0" + rank + ".pt");
    copy_file(file, "/run/step_10/optimizer/pp_00/tp_00/sdp_0" + rank + ".pt");
    copy_file("plain.pt", "/run/step_10/trainer/rank_0" + rank + ".pt");
    copy_file("plain.pt", "/run/step_10/data_reader/dp_0" + rank + ".pt");
  }
  EXPECT_THAT(suggested("/run/step_10"),
              ElementsAre(read_folder(model), read_folder("/run/step_10/optimizer/pp_00/tp_00")));
  EXPECT_EQ(suggested("/run"), suggested("/run/step_10"));
  const Source step{fs.get(), {"/run/step_10"}};
  EXPECT_EQ(model_candidates(step, recognise(step).below).size(), 1U);
}

TEST_F(FolderAbove, TheOptimizerOfAnUnsupportedCheckpointIsNone) {
  put("/run/10/checkpoint_metadata.json", "{}");
  copy_file("plain.pt", "/run/10/optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-0-of-1.pt");
  const Error error = test::error_of([&] { detect_format({fs.get(), {"/run"}}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("nanotron"));
}

TEST_F(FolderAbove, SetsOfRankFilesAreNamedOneByOne) {
  put_verl("/run/global_step_5/actor");
  const std::string actor = "/run/global_step_5/actor/";
  const std::vector<Suggestion> lines{read_files(actor + "model_world_size_2_rank_*.pt"),
                                      read_files(actor + "optim_world_size_2_rank_*.pt")};
  EXPECT_EQ(suggested("/run/global_step_5/actor"), lines);
  EXPECT_EQ(suggested("/run/global_step_5"), lines);
  put("/run/latest_checkpointed_iteration.txt", "5");
  EXPECT_EQ(suggested("/run"), lines);
}

TEST_F(FolderAbove, EachSetThatIsSuggestedCanBeRead) {
  put_verl("/v");
  EXPECT_EQ(detected({"/v/model_world_size_2_rank_0.pt", "/v/model_world_size_2_rank_1.pt"}), "torch-ranks");
  EXPECT_EQ(detected({"/v/extra_state_world_size_2_rank_0.pt"}), "torch");
}

TEST_F(FolderAbove, SavesOfOtherNumbersOfRanksAreOtherSets) {
  put_verl("/v");
  for (const std::string rank : {"0", "1", "2", "3"}) {
    copy_file("ranks_dtensor_r4/model_world_size_4_rank_" + rank + ".pt", "/v/model_world_size_4_rank_" + rank + ".pt");
  }
  EXPECT_THAT(suggested("/v"), ::testing::Contains(read_files("/v/model_world_size_4_rank_*.pt")));
}

TEST_F(FolderAbove, OneSetBesideATrainersFilesIsNamed) {
  for (const std::string rank : {"0", "1"}) {
    copy_file("ranks_dtensor_r2/model_world_size_2_rank_" + rank + ".pt", "/c/pytorch_model_fsdp_rank" + rank + ".bin");
  }
  copy_file("plain.pt", "/c/scheduler.pt");
  EXPECT_THAT(suggested("/c"), ElementsAre(read_files("/c/pytorch_model_fsdp_rank*.bin")));
}

TEST_F(FolderAbove, WholeFilesOfTorchAreNamedTheModelFirst) {
  copy_file("plain.pt", "/c/optimizer.bin");
  copy_file("plain.pt", "/c/pytorch_model_fsdp.bin");
  copy_file("plain.pt", "/c/scheduler.pt");
  EXPECT_THAT(suggested("/c"), ElementsAre(read_folder("/c/pytorch_model_fsdp.bin"), read_folder("/c/optimizer.bin")));
}

TEST_F(FolderAbove, AModelBesideItsOptimizerIsNamed) {
  copy_file("plain.pt", "/c/optimizer.bin");
  copy_file("plain.pt", "/c/pytorch_model_fsdp.bin");
  EXPECT_THAT(suggested("/c"), ElementsAre(read_folder("/c/pytorch_model_fsdp.bin"), read_folder("/c/optimizer.bin")));
}

TEST_F(FolderAbove, OnlyTheModelsOwnAreCandidatesForAModel) {
  put_verl("/run/global_step_5/actor");
  put_verl("/run/global_step_7/actor");
  const Source run{fs.get(), {"/run"}};
  const auto candidates = [&] {
    std::vector<std::string> paths;
    for (const FoundCheckpoint& each : model_candidates(run, recognise(run).below)) paths.push_back(each.path);
    return paths;
  };
  EXPECT_THAT(candidates(), ElementsAre("/run/global_step_7/actor/model_world_size_2_rank_*.pt",
                                        "/run/global_step_5/actor/model_world_size_2_rank_*.pt"));
  put("/run/latest_checkpointed_iteration.txt", "5\n");
  EXPECT_THAT(candidates(), ElementsAre("/run/global_step_5/actor/model_world_size_2_rank_*.pt"));
  EXPECT_THAT(model_candidates(run, recognise(run).below).front().paths(),
              ElementsAre("/run/global_step_5/actor/model_world_size_2_rank_0.pt",
                          "/run/global_step_5/actor/model_world_size_2_rank_1.pt"));
  put("/run/latest_checkpointed_iteration.txt", "9");
  EXPECT_EQ(candidates().size(), 2U);
}

TEST_F(FolderAbove, ATrainersOwnStatesAreNone) {
  copy_folder("dcp_plain_r2", "/run/model_and_optim");
  for (const char* name : {"train/rank0.pt", "train/rank1.pt", "rng/rng.pt", "data.pt", "trainer_state.pt",
                           "extra_info.pt", "recipe_state/recipe_state.pt", "dataloader/rank_0.pt", "meta.pt"}) {
    copy_file("plain.pt", std::string("/run/") + name);
  }
  EXPECT_THAT(suggested("/run"), ElementsAre(read_folder("/run/model_and_optim")));
  const Source run{fs.get(), {"/run"}};
  EXPECT_EQ(model_candidates(run, recognise(run).below).size(), 1U);
}

TEST_F(FolderAbove, ATrainersOwnStateIsFoundWhereThereIsNothingElse) {
  copy_file("plain.pt", "/run/states/data.pt");
  EXPECT_THAT(suggested("/run"), ElementsAre(read_folder("/run/states/data.pt")));
}

TEST_F(FolderAbove, StepsInOneFolderAreFilesTheLastOneFirst) {
  for (const char* name : {"epoch=1-step=9.ckpt", "epoch=2-step=10.ckpt", "last.pth.tar"}) {
    copy_file("plain.pt", std::string("/run/") + name);
  }
  EXPECT_THAT(suggested("/run"),
              ElementsAre(read_folder("/run/epoch=2-step=10.ckpt"), read_folder("/run/epoch=1-step=9.ckpt"),
                          read_folder("/run/last.pth.tar")));
}

TEST_F(FolderAbove, FilesWhoseNamesDifferInMoreThanNumbersAreNoRanks) {
  copy_file("plain.pt", "/run/left.pt");
  copy_file("plain.pt", "/run/right.pt");
  EXPECT_THAT(suggested("/run"), ElementsAre(read_folder("/run/left.pt"), read_folder("/run/right.pt")));
}

TEST_F(FolderAbove, AFileWithoutTensorsIsNoneOfSeveral) {
  copy_file("plain.pt", "/run/left.pt");
  put("/run/right.pt", testing::golden("trainers/olmo/step100/no_tensors.pt"));
  EXPECT_THAT(suggested("/run"), ElementsAre(read_folder("/run/left.pt")));
}

TEST_F(FolderAbove, AFolderOfTwoFormatsIsNotLookedInto) {
  copy_folder("dcp_plain_r2", "/run/both");
  put("/run/both/model.safetensors.index.json", R"({"weight_map": {}})");
  copy_file("plain.pt", "/run/both/x/a.pt");
  EXPECT_THAT(suggested("/run"), ElementsAre(read_folder("/run/both")));
}

TEST_F(FolderAbove, AtMostEightAreSuggested) {
  for (int i = 0; i < 12; ++i) copy_folder("dcp_plain_r2", "/c/step" + std::to_string(i));
  EXPECT_EQ(suggested("/c").size(), 8U);
}

TEST_F(FolderAbove, ItLooksAtSomeThousandNamesAtMost) {
  for (int i = 0; i < 6000; ++i) put("/c/notes" + std::to_string(i) + ".txt", "x");
  const std::int64_t before = state->calls();
  EXPECT_THAT(suggested("/c"), IsEmpty());
  EXPECT_LT(state->calls() - before, 6000);
}

}  // namespace
}  // namespace shard
