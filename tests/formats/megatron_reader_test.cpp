// Saves of the real Megatron-LM (tests/data/megatron_legacy/make.py) compared with its own sharded state dicts, forms
// of other versions, and damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>

#include "formats/detect.h"
#include "formats/megatron/format.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/megatron_saves.h"
#include "tests/formats/torch_files.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::Contains;
using testing::Content;
using testing::find_object;
using ::testing::HasSubstr;
using testing::open_checkpoint;
using testing::read_content;

std::string data(const std::string& name) { return std::string(SHARD_TEST_DATA) + "/megatron_legacy/" + name; }

Content truth_of(const std::string& name) { return testing::truth_beside(data(name)); }

/// The reader's tensors, without the numbers of steps that an optimizer of torch keeps for each parameter.
Content content_of(Reader& reader) {
  Content content = read_content(reader);
  std::erase_if(content, [](const auto& each) { return each.first.ends_with(".step"); });
  return content;
}

/// `content` must be the content of `name`; each tensor is compared separately, so that a failure is short.
void expect_content(const Content& content, const Content& truth) {
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(content.contains(name)) << name;
    EXPECT_TRUE(content.at(name) == tensor) << name;
  }
  for (const auto& [name, tensor] : content) EXPECT_TRUE(truth.contains(name)) << name;
}

class MegatronGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(MegatronGolden, HoldsTheWholeTensorsOfTheRun) {
  const std::unique_ptr<Reader> reader = open_checkpoint(posix_disk(), data(GetParam()) + "/iter_0000005");
  EXPECT_EQ(reader->catalog().format, "megatron");
  expect_content(content_of(*reader), truth_of(GetParam()));
}

TEST_P(MegatronGolden, IsFoundInTheFolderOfTheRun) {
  EXPECT_EQ(detect_format({&posix_disk(), {data(GetParam())}}).traits.name, "megatron");
}

INSTANTIATE_TEST_SUITE_P(Saves, MegatronGolden, ::testing::Values("dense", "experts", "uneven"));

/// A save in memory, for tests that change it.
class MegatronSave : public ::testing::Test {
 protected:
  void take(const std::string& name) {
    for (auto& [path, bytes] : testing::files_below(data(name) + "/iter_0000005")) files_[path] = std::move(bytes);
  }
  void edit(const std::string& file, const std::function<void(Arena&, Value&)>& change) {
    files_.at(file) = testing::repickled(files_.at(file), change);
  }
  void edit_all(const std::function<void(Arena&, Value&)>& change) {
    for (auto& [name, bytes] : files_) {
      if (name.ends_with("model_optim_rng.pt")) bytes = testing::repickled(bytes, change);
    }
  }
  /// Gives an argument, which may be new, a value in all files, or in one.
  void set_argument(const std::string& name, const std::function<Value*(Arena&)>& value, const std::string& file = {}) {
    const auto change = [&](Arena& arena, Value& root) {
      Value& arguments = *find_key(root, "args")->state();
      std::vector<Value*> items(arguments.items().begin(), arguments.items().end());
      items.insert(items.end(), {make_string(arena, name), value(arena)});
      arguments = *make_list(arena, ValueKind::kDict, items);
    };
    file.empty() ? edit_all(change) : edit(file, change);
  }
  static std::function<Value*(Arena&)> number(std::int64_t value) {
    return [value](Arena& arena) { return make_int(arena, value); };
  }
  static std::function<Value*(Arena&)> text(const char* value) {
    return [value](Arena& arena) { return make_string(arena, value); };
  }
  static std::function<Value*(Arena&)> flag(bool value) {
    return [value](Arena& arena) { return make_bool(arena, value); };
  }

  std::unique_ptr<Reader> open(const OpenOptions& options = {}) {
    state_ = std::make_shared<MemoryState>();
    disk_ = make_memory_disk(state_);
    disk_->make_folder("/s");
    for (const auto& [name, bytes] : files_) {
      if (const std::string folder = "/s/" + name.substr(0, name.find('/'));
          disk_->status(folder).kind == FileKind::kAbsent) {
        disk_->make_folder(folder);
      }
      state_->put("/s/" + name, std::as_bytes(std::span(bytes)));
    }
    return kMegatronFormat.open({disk_.get(), {"/s"}}, options);
  }
  Error error() {
    return test::error_of([&] { open(); });
  }
  void expect_refused(ErrorCode code, std::optional<FindingKind> kind, const std::string& words) {
    const Error found = error();
    EXPECT_EQ(found.code(), code) << found.what();
    EXPECT_EQ(found.kind(), kind) << found.what();
    EXPECT_THAT(std::string(found.what()) + " " + found.file() + " " + found.why(), HasSubstr(words));
  }

  std::map<std::string, std::string> files_;
  std::shared_ptr<MemoryState> state_;
  std::unique_ptr<LocalDisk> disk_;
};

constexpr const char* kFirst = "mp_rank_00_000/model_optim_rng.pt";
constexpr const char* kLast = "mp_rank_01_001/model_optim_rng.pt";

// Reading

TEST_F(MegatronSave, ArgumentsAreObjectsByName) {
  take("dense");
  const std::unique_ptr<Reader> reader = open();
  EXPECT_EQ(reader->catalog().world_size, 4);
  ASSERT_NE(find_object(reader->catalog(), "args.num_query_groups"), nullptr);
  EXPECT_EQ(find_object(reader->catalog(), "args.num_query_groups")->value->number, 2);
  EXPECT_EQ(find_object(reader->catalog(), "iteration")->value->number, 5);
  EXPECT_NE(find_object(reader->catalog(), "optimizer.optimizer.param_groups.0.lr"), nullptr);
  EXPECT_NE(find_object(reader->catalog(), "decoder.layers.3.mlp.linear_fc2._extra_state"), nullptr);
  EXPECT_EQ(find_object(reader->catalog(), "rng_state"), nullptr);
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("rng_state")));
}

TEST_F(MegatronSave, WhatLiesBesideTheModelIsKeptWhateverItsName) {
  take("dense");
  edit_all([](Arena& arena, Value& root) {
    std::vector<Value*> items(root.items().begin(), root.items().end());
    items.insert(items.end(), {make_string(arena, "model_note"), make_int(arena, 7)});
    root.set_items(make_list(arena, ValueKind::kDict, items)->items());
  });
  const std::unique_ptr<Reader> reader = open();
  const Object* const note = find_object(reader->catalog(), "model_note");
  ASSERT_NE(note, nullptr);
  EXPECT_EQ(note->value->number, 7);
}

TEST_F(MegatronSave, UnknownClassesInArgumentsStopNothing) {
  take("dense");
  set_argument("activation_func", [](Arena& arena) { return make_global(arena, "torch.nn.functional", "silu"); });
  EXPECT_NE(open()->catalog().find("decoder.layers.0.mlp.linear_fc1.weight"), nullptr);
}

TEST_F(MegatronSave, TheCopyOfATiedEmbeddingIsAReplica) {
  take("dense");
  const std::unique_ptr<Reader> reader = open();
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.find("output_layer.weight"), nullptr);
  EXPECT_EQ(catalog.find("embedding.word_embeddings.weight")->chunk_count, 4);
}

TEST_F(MegatronSave, BuffersOfOtherLengthsAreLeftOutWithAWarning) {
  take("dense");
  for (const char* file : {"mp_rank_00_000/distrib_optim.pt", "mp_rank_01_000/distrib_optim.pt"}) {
    edit(file, [](Arena& arena, Value& root) {
      Value& states = *mapping_items(*mapping_items(root)[3])[1];  // Padding of buffer 0.
      for (std::size_t i = 0; i + 1 < states.items().size(); i += 2) {
        if (Value& tensor = *states.items()[i + 1]; tensor.kind == ValueKind::kCall) {
          const std::int64_t count = tensor.items()[2]->items()[0]->number;
          tensor.items()[2] = make_list(arena, ValueKind::kTuple, std::array{make_int(arena, count - 1)});
        }
      }
    });
  }
  const std::unique_ptr<Reader> reader = open();
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("distrib_optim.pt")));
  Content truth = truth_of("dense");
  std::erase_if(truth, [](const auto& each) { return each.first.starts_with("optimizer."); });
  expect_content(content_of(*reader), truth);
}

TEST_F(MegatronSave, StatesOfOtherShapesAreLeftOutWithAWarning) {
  take("uneven");
  edit("mp_rank_00_001/model_optim_rng.pt", [](Arena& arena, Value& root) {
    Value& groups = *find_key(*find_key(*find_key(root, "optimizer"), "optimizer"), "param_groups");
    Value& numbers = *find_key(*groups.items()[0], "params");
    numbers = *make_list(arena, ValueKind::kList, numbers.items().subspan(1));
  });
  const std::unique_ptr<Reader> reader = open();
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("optimizer's states")));
  EXPECT_EQ(reader->catalog().find("optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc1.weight"), nullptr);
}

/// Renames the tensors of the model in all files.
void rename(Value& root, Arena& arena, const std::function<std::string(std::string)>& renamed) {
  Value& model = *find_key(root, "model");
  const std::span<Value*> items = mapping_items(model);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    items[i] = make_string(arena, renamed(std::string(items[i]->text())));
  }
}

std::string replaced(std::string text, const std::string& old, const std::string& present) {
  const std::size_t at = text.find(old);
  return at == std::string::npos ? text : text.replace(at, old.size(), present);
}

TEST_F(MegatronSave, GroupedExpertsAreTheSame) {
  take("experts");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena, [](std::string name) {
      const std::string mark = "local_experts.";
      const std::size_t at = name.find(mark);
      if (at == std::string::npos) return name;
      const char expert = name[at + mark.size()];
      return name.substr(0, at) + name.substr(at + mark.size() + 2) + expert;
    });
  });
  expect_content(content_of(*open()), truth_of("experts"));
}

TEST_F(MegatronSave, NamesFromBeforeMegatronCoreAreTheSame) {
  take("uneven");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena, [](std::string name) {
      const std::pair<const char*, const char*> names[] = {
          {"self_attention.linear_qkv", "self_attention.query_key_value"},
          {"self_attention.linear_proj", "self_attention.dense"},
          {"pre_mlp_layernorm", "post_attention_layernorm"},
          {"mlp.linear_fc1", "mlp.dense_h_to_4h"},
          {"mlp.linear_fc2", "mlp.dense_4h_to_h"}};
      for (const auto& [present, old] : names) name = replaced(name, present, old);
      if (name.ends_with("_extra_state")) return name;
      return "language_model." + replaced(name, "decoder.", "encoder.");
    });
  });
  expect_content(content_of(*open()), truth_of("uneven"));
}

TEST_F(MegatronSave, FilesThatAreNotReadAreNamed) {
  take("dense");
  files_["mp_rank_00_000/layer_wise_optimizer_0.pt"] = "x";
  EXPECT_THAT(open()->catalog().warnings, Contains(HasSubstr("layer_wise_optimizer_0.pt")));
}

TEST_F(MegatronSave, WithoutTheOptimizersFilesWeightsAreRead) {
  take("dense");
  std::erase_if(files_, [](const auto& file) { return file.first.ends_with("distrib_optim.pt"); });
  const std::unique_ptr<Reader> reader = open();
  EXPECT_THAT(reader->catalog().warnings, Contains(HasSubstr("distrib_optim.pt")));
  EXPECT_NE(reader->catalog().find("decoder.final_layernorm.weight"), nullptr);
}

// Refusals

TEST_F(MegatronSave, AMissingFolderIsNamed) {
  for (const char* folder : {"mp_rank_00_000", "mp_rank_01_000", "mp_rank_01_001"}) {
    files_.clear();
    take("dense");
    std::erase_if(files_, [&](const auto& file) { return file.first.starts_with(folder); });
    expect_refused(ErrorCode::kNotFound, FindingKind::kMissingFile, folder);
  }
}

TEST_F(MegatronSave, AMissingFileOfTheOptimizerIsNamed) {
  take("dense");
  files_.erase("mp_rank_01_001/distrib_optim.pt");
  EXPECT_EQ(error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(error().file(), HasSubstr("mp_rank_01_001/distrib_optim.pt"));
}

TEST_F(MegatronSave, AFolderTooManyIsNamed) {
  take("dense");
  files_["mp_rank_02_000/model_optim_rng.pt"] = files_.at(kFirst);
  expect_refused(ErrorCode::kCorruption, FindingKind::kExtraFile, "mp_rank_02_000");
}

TEST_F(MegatronSave, OtherRanksThanExpected) {
  take("dense");
  const Error found = test::error_of([&] {
    OpenOptions options;
    options.ranks_expected = 8;
    open(options);
  });
  EXPECT_EQ(found.kind(), FindingKind::kWorldSizeMismatch);
}

TEST_F(MegatronSave, FilesOfTwoSteps) {
  take("dense");
  edit(kLast, [](Arena& arena, Value& root) { *find_key(root, "iteration") = *make_int(arena, 6); });
  expect_refused(ErrorCode::kCorruption, FindingKind::kMixedSave, kLast);
}

TEST_F(MegatronSave, FilesOfRanksThatWereExchanged) {
  take("uneven");
  const std::string first = "mp_rank_00_000/model_optim_rng.pt", last = "mp_rank_00_002/model_optim_rng.pt";
  std::swap(files_.at(first), files_.at(last));
  expect_refused(ErrorCode::kCorruption, FindingKind::kRankMismatch, "process");
}

TEST_F(MegatronSave, OptimizersOfRanksThatWereExchanged) {
  const auto exchange = [&](const std::string& a, const std::string& b) {
    std::swap(files_.at("mp_rank_" + a + "/distrib_optim.pt"), files_.at("mp_rank_" + b + "/distrib_optim.pt"));
  };
  take("dense");
  exchange("00_000", "00_001");
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "mp_rank_00_000/distrib_optim.pt");
  exchange("01_000", "01_001");  // All ranks of a stage agree.
  expect_refused(ErrorCode::kCorruption, FindingKind::kRankMismatch, "mp_rank_00_000/distrib_optim.pt");
  exchange("00_000", "00_001");
  expect_refused(ErrorCode::kCorruption, FindingKind::kShapeMismatch, "mp_rank_01_000/distrib_optim.pt");
}

TEST_F(MegatronSave, AModelInPlaceOfItsOptimizer) {
  take("dense");
  files_.at("mp_rank_01_001/distrib_optim.pt") = files_.at(kLast);
  expect_refused(ErrorCode::kCorruption, FindingKind::kRankMismatch, "mp_rank_01_001/distrib_optim.pt");
}

TEST_F(MegatronSave, ArgumentsThatContradictThoseOfRank0) {
  take("dense");
  set_argument("tensor_model_parallel_size", number(4), kLast);
  expect_refused(ErrorCode::kCorruption, FindingKind::kMixedSave, kLast);
}

TEST_F(MegatronSave, LayersThatDoNotFitTheStages) {
  take("dense");
  set_argument("num_layers", number(5));
  expect_refused(ErrorCode::kCorruption, FindingKind::kBadPickle, "evenly");
  files_.clear();
  take("dense");
  set_argument("num_layers", number(8));
  expect_refused(ErrorCode::kCorruption, FindingKind::kGap, "all layers");
}

TEST_F(MegatronSave, ALayerTooMany) {
  take("uneven");
  set_argument("decoder_first_pipeline_num_layers", number(2));
  set_argument("decoder_last_pipeline_num_layers", number(0));
  expect_refused(ErrorCode::kCorruption, FindingKind::kGap, "mp_rank_00_000");
}

TEST_F(MegatronSave, ATensorThatOneRankLacks) {
  take("experts");
  edit("mp_rank_01_001/model_optim_rng.pt", [](Arena& arena, Value& root) {
    rename(root, arena,
           [](std::string name) { return replaced(name, "decoder.layers.1.input", "decoder.layers.1.output"); });
  });
  expect_refused(ErrorCode::kCorruption, FindingKind::kIndexMismatch, "layernorm");
}

TEST_F(MegatronSave, ATensorWithoutARuleIsRefusedWhereRanksShareIt) {
  take("experts");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena, [](std::string name) { return replaced(name, "linear_proj.weight", "linear_odd.weight"); });
  });
  expect_refused(ErrorCode::kUnsupported, std::nullopt, "linear_odd.weight");
}

TEST_F(MegatronSave, RowsTellWhetherDownProjectionsAreCut) {
  for (const auto& [name, argument] :
       {std::pair("linear_q_down_proj", "q_lora_rank"), std::pair("linear_kv_down_proj", "kv_lora_rank")}) {
    for (const auto& [rows, whole] : {std::pair(8, 8), std::pair(16, 16), std::pair(12, 0)}) {
      files_.clear();
      take("experts");
      edit_all([&](Arena& arena, Value& root) {  // [8, 4] on each rank.
        rename(root, arena,
               [&](std::string old) { return replaced(old, "linear_proj.weight", std::string(name) + ".weight"); });
      });
      set_argument(argument, number(rows));
      if (whole == 0) {
        expect_refused(ErrorCode::kUnsupported, std::nullopt, name);
        continue;
      }
      const std::unique_ptr<Reader> reader = open();
      const Tensor* const tensor =
          reader->catalog().find("decoder.layers.0.self_attention." + std::string(name) + ".weight");
      ASSERT_NE(tensor, nullptr);
      EXPECT_THAT(tensor->shape.span(), ::testing::ElementsAre(whole, 4));
    }
  }
}

TEST_F(MegatronSave, ATensorWithoutARuleIsWholeOnOneTensorRank) {
  take("uneven");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena, [](std::string name) { return replaced(name, "linear_proj.weight", "linear_odd.weight"); });
  });
  EXPECT_NE(open()->catalog().find("decoder.layers.3.self_attention.linear_odd.weight"), nullptr);
}

TEST_F(MegatronSave, AnOldNameThatNothingStandsFor) {
  take("uneven");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena,
           [](std::string name) { return replaced(name, "decoder.final_layernorm", "language_model.pooler"); });
  });
  expect_refused(ErrorCode::kUnsupported, std::nullopt, "language_model.pooler");
}

TEST_F(MegatronSave, LayersOfAnEncoderAreNamed) {
  take("uneven");
  edit_all([](Arena& arena, Value& root) {
    rename(root, arena, [](std::string name) { return replaced(name, "decoder.layers", "encoder.layers"); });
  });
  expect_refused(ErrorCode::kUnsupported, std::nullopt, "encoder.layers");
}

TEST_F(MegatronSave, KindsThatAreNotJoinedAreNamed) {
  const std::pair<const char*, std::function<Value*(Arena&)>> kinds[] = {
      {"pipeline_model_parallel_layout", text("Et*2|t*2L")},
      {"hybrid_override_pattern", text("M-M*")},
      {"standalone_embedding_stage", flag(true)},
  };
  for (const auto& [argument, value] : kinds) {
    files_.clear();
    take("dense");
    set_argument(argument, value);
    expect_refused(ErrorCode::kUnsupported, std::nullopt, argument);
  }
  files_.clear();
  take("experts");
  set_argument("expert_tensor_parallel_size", number(1));
  expect_refused(ErrorCode::kUnsupported, std::nullopt, "expert_tensor_parallel_size");
}

TEST_F(MegatronSave, OldOrdersOfQueriesAreNamed) {
  take("dense");
  edit_all([](Arena& arena, Value& root) { *find_key(root, "checkpoint_version") = *make_int(arena, 1); });
  expect_refused(ErrorCode::kUnsupported, std::nullopt, "checkpoint_version");
}

TEST_F(MegatronSave, MoreExpertsThanTheArgumentsKnow) {
  take("experts");
  set_argument("num_experts", number(2));
  expect_refused(ErrorCode::kCorruption, FindingKind::kIndexMismatch, "experts");
}

TEST_F(MegatronSave, FewerExpertsThanTheArgumentsKnow) {
  take("experts");
  set_argument("num_experts", number(8));
  expect_refused(ErrorCode::kCorruption, FindingKind::kGap, "experts");
}

TEST_F(MegatronSave, NumbersThatMakeNoSense) {
  const std::pair<const char*, std::int64_t> numbers[] = {{"tensor_model_parallel_size", 0},
                                                          {"tensor_model_parallel_size", -1},
                                                          {"pipeline_model_parallel_size", std::int64_t{1} << 40},
                                                          {"num_layers", std::int64_t{1} << 40},
                                                          {"num_experts", 3}};
  for (const auto& [name, value] : numbers) {
    files_.clear();
    take("experts");
    set_argument(name, number(value));
    EXPECT_EQ(error().code(), ErrorCode::kCorruption) << name << " " << value;
  }
}

TEST_F(MegatronSave, PartsOfVirtualStagesThatAreMissingOrTooMany) {
  take("dense");
  set_argument("virtual_pipeline_model_parallel_size", number(4));
  expect_refused(ErrorCode::kCorruption, FindingKind::kBadPickle, "model2");
  files_.clear();
  take("dense");
  set_argument("virtual_pipeline_model_parallel_size", number(1));
  expect_refused(ErrorCode::kCorruption, FindingKind::kBadPickle, "model");
}

TEST_F(MegatronSave, EveryCallThatFailsIsAnError) {
  take("experts");
  const std::size_t tensors = open()->catalog().tensors.size();
  const Source source{disk_.get(), {"/s"}};
  for (std::int64_t call = 0;; ++call) {
    ASSERT_LT(call, 1000);
    const std::int64_t begin = state_->calls();
    state_->fail_at(begin + call);
    std::unique_ptr<Reader> reader;
    try {
      reader = kMegatronFormat.open(source, {});
    } catch (const Error& failed) {
      EXPECT_EQ(failed.code(), ErrorCode::kNotFound) << "call " << call << ": " << failed.what();
    }
    const bool is_done = state_->calls() <= begin + call;
    state_->fail_at(-1);
    EXPECT_TRUE(reader == nullptr || reader->catalog().tensors.size() == tensors) << "call " << call;
    if (is_done) break;
  }
}

TEST_F(MegatronSave, EveryCutIsRefused) {
  take("experts");
  for (const char* file : {"mp_rank_01_001/model_optim_rng.pt", "mp_rank_01_001/distrib_optim.pt"}) {
    const std::string whole = files_.at(file);
    for (std::size_t cut = 0; cut < whole.size(); cut += 997) {
      files_[file] = whole.substr(0, cut);
      EXPECT_EQ(error().code(), ErrorCode::kCorruption) << cut;
    }
    files_[file] = whole;
  }
}

}  // namespace
}  // namespace shard
