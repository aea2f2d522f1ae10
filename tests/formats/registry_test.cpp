#include "formats/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "formats/detect.h"
#include "formats/parts/zip/zip.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"
#include "tests/support/safetensors_file.h"

namespace shard {
namespace {

using test::expect_error;
using ::testing::HasSubstr;

TEST(Formats, AreListedOnce) {
  std::vector<std::string> names;
  for (const Format* format : formats()) names.emplace_back(format->traits.name);
  EXPECT_THAT(names, ::testing::ElementsAre("safetensors", "torch", "dcp", "dcp-hf", "torch-ranks", "deepspeed",
                                            "deepspeed-universal", "megatron", "megatron-dist", "vllm"));
}

TEST(FormatNamed, FindsEveryFormat) {
  for (const Format* format : formats()) EXPECT_EQ(&format_named(format->traits.name), format);
}

TEST(FormatNamed, SuggestsTheNearestName) {
  expect_error(ErrorCode::kInvalidArgument, "did you mean safetensors?", [] { format_named("safetensor"); });
  expect_error(ErrorCode::kInvalidArgument, "did you mean torch?", [] { format_named("troch"); });
}

TEST(FormatNamed, ListsAllWhenNothingIsNear) {
  expect_error(ErrorCode::kInvalidArgument, "safetensors, torch, dcp", [] { format_named("parquet"); });
}

/// A zip of empty records in `folder`.
std::string zip_of(const std::string& folder, const std::vector<std::string>& names) {
  zip::ZipLayout layout(folder);
  for (const std::string& name : names) layout.add(name, 0);
  std::string bytes;
  for (const zip::ZipLayout::Span& span : layout.frame(std::vector<std::uint32_t>(names.size()))) bytes += span.content;
  return bytes;
}

std::string torch_save_zip(const std::vector<std::string>& names) { return zip_of("archive", names); }

/// The header of a tar archive whose first member has that name.
std::string tar_of(const std::string& member) {
  std::string header(512, '\0');
  header.replace(0, member.size(), member);
  return header.replace(257, 5, "ustar");
}

class DetectFormat : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }
  std::string detected(const std::vector<std::string>& paths) {
    return std::string(detect_format({fs.get(), paths}).traits.name);
  }
  void expect_refused(ErrorCode code, const std::string& words, const std::vector<std::string>& paths) {
    expect_error(code, words, [&] { detected(paths); });
  }

  const std::string kSafetensors =
      test::safetensors_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(DetectFormat, SafetensorsByContentWhateverTheName) {
  put("/d/x.bin", kSafetensors);
  EXPECT_EQ(detected({"/d/x.bin"}), "safetensors");
}

TEST_F(DetectFormat, AFolderOfSafetensors) {
  put("/d/x.safetensors", kSafetensors);
  put("/d/config.json", "{}");
  EXPECT_EQ(detected({"/d"}), "safetensors");
}

TEST_F(DetectFormat, AnIndexItself) {
  put("/d/model.safetensors.index.json", R"({"metadata":{},"weight_map":{"a":"x.safetensors"}})");
  EXPECT_EQ(detected({"/d/model.safetensors.index.json"}), "safetensors");
  EXPECT_EQ(detected({"/d"}), "safetensors");
}

TEST_F(DetectFormat, SeveralSafetensorsFiles) {
  put("/d/x.safetensors", kSafetensors);
  put("/d/y.safetensors", kSafetensors);
  EXPECT_EQ(detected({"/d/x.safetensors", "/d/y.safetensors"}), "safetensors");
}

TEST_F(DetectFormat, NothingThereIsNotFound) { expect_refused(ErrorCode::kNotFound, "no such file", {"/no"}); }

TEST_F(DetectFormat, UnknownContentIsCorruptionThatNamesTheFormats) {
  put("/d/notes.txt", "hello");
  expect_refused(ErrorCode::kCorruption, "safetensors, torch, dcp", {"/d/notes.txt"});
  expect_refused(ErrorCode::kCorruption, "not a checkpoint in any known format", {"/d"});
}

TEST_F(DetectFormat, AFolderWithoutWeightsIsRefusedWithItsFiles) {
  put("/d/config.json", "{}");
  put("/d/tokenizer.json", "{}");
  expect_refused(ErrorCode::kCorruption, "the folder contains 'config.json', 'tokenizer.json'", {"/d"});
}

TEST_F(DetectFormat, AFolderOfTwoFormatsNamesBothAndTheOption) {
  put("/d/x.safetensors", kSafetensors);
  put("/d/.metadata", "\x80\x02}.");
  put("/d/__0_0.distcp", "x");
  expect_refused(ErrorCode::kCorruption, "matches 2 formats: safetensors, dcp", {"/d"});
  const Error error = test::error_of([&] { detected({"/d"}); });
  EXPECT_THAT(error.suggestions(),
              ::testing::ElementsAre(Suggestion{Remedy::kReadAs, "safetensors"}, Suggestion{Remedy::kReadAs, "dcp"}));
}

TEST_F(DetectFormat, AFolderOfThreeFormatsHoldsTheFilesOfAll) {
  put("/d/x.safetensors", kSafetensors);
  put("/d/.metadata", "\x80\x02}.");
  put("/d/__0_0.distcp", "x");
  put("/d/pytorch_model.bin", "PK\x03\x04");
  const Error error = test::error_of([&] { detected({"/d"}); });
  EXPECT_THAT(error.what(), HasSubstr("matches 3 formats: safetensors, torch, dcp"));
  EXPECT_THAT(error.why(), HasSubstr("all of them"));
}

TEST_F(DetectFormat, ALoneTorchFileOfAnotherNameIsHintedAt) {
  put("/d/adapter_config.json", "{}");
  put("/d/adapter_model.bin", torch_save_zip({"data.pkl"}));
  const Error error = test::error_of([&] { detected({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.what(), HasSubstr("not a checkpoint in any known format"));
  EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReadFolder, "/d/adapter_model.bin"}));
}

TEST_F(DetectFormat, ADamagedFileIsLeftToTheReaderThatItsNameHintsAt) {
  put("/d/x.safetensors", "12");
  EXPECT_EQ(detected({"/d/x.safetensors"}), "safetensors");
  EXPECT_EQ(detected({"/d"}), "safetensors");
}

TEST_F(DetectFormat, KnownFilesAreNamed) {
  const std::pair<std::string, std::string> files[] = {
      {"GGUF\x03", "a GGUF file"},
      {"PYTORCH1....", "TorchScript"},
      {"\x93NUMPY", "a NumPy array"},
      {"\x1f\x8b\x08", "a gzip file"},
      {"\x28\xb5\x2f\xfd", "a zstd file"},
      {"\xfd\x37zXZ" + std::string(1, '\0'), "an xz file"},
      {"BZh9", "a bzip2 file"},
      {"tjgg", "a GGML file"},
      {tar_of("model_weights.ckpt"), "this is a tar archive"},
      {tar_of("storages"), "torch 0.1"},
      {"\x80\x02}q.", "a plain Python pickle"},
  };
  for (const auto& [content, words] : files) {
    put("/f", content);
    expect_refused(ErrorCode::kUnsupported, words, {"/f"});
  }
}

TEST_F(DetectFormat, ACutPickleIsNoPlainOne) {
  put("/f", "\x80\x02}q");
  expect_refused(ErrorCode::kCorruption, "not a checkpoint in any known format", {"/f"});
}

TEST_F(DetectFormat, ProgramsOfTorchExportAreNamed) {
  put("/new.pt2", torch_save_zip({"archive_format", "archive_version", "models/model.json"}));
  expect_refused(ErrorCode::kUnsupported, "a program of torch.export", {"/new.pt2"});
}

TEST_F(DetectFormat, ZipsOfOtherKindsAreNamed) {
  put("/p.pt", zip_of("p", {".data/extern_modules", ".data/version"}));
  expect_refused(ErrorCode::kUnsupported, "a torch.package", {"/p.pt"});
  put("/x.npz", zip_of("x", {"a.npy", "b.npy"}));
  expect_refused(ErrorCode::kUnsupported, "a NumPy archive", {"/x.npz"});
}

TEST_F(DetectFormat, PartsOfVllmAreNamedThoughTheyAreSafetensors) {
  put("/v/model-rank-0-part-0.safetensors", kSafetensors);
  EXPECT_EQ(detected({"/v"}), "safetensors");  // One rank has everything.
  put("/v/model-rank-1-part-0.safetensors", kSafetensors);
  expect_refused(ErrorCode::kUnsupported, "vLLM", {"/v"});
}

TEST_F(DetectFormat, TheFolderAboveDeepSpeedsIsIts) {
  put("/d/latest", "global_step10\n");
  put("/d/global_step10/mp_rank_00_model_states.pt", "x");
  EXPECT_EQ(detected({"/d"}), "deepspeed");
  EXPECT_EQ(detected({"/d/global_step10"}), "deepspeed");
  put("/other/latest", "news");
  expect_refused(ErrorCode::kCorruption, "not a checkpoint in any known format", {"/other"});
}

TEST_F(DetectFormat, TheLatestIterationBesideStepsIsNotMegatrons) {
  put("/d/latest_checkpointed_iteration.txt", "10");
  put("/d/iter_0000010/x", "x");
  expect_refused(ErrorCode::kCorruption, "iteration that latest_checkpointed_iteration.txt names is not", {"/d"});
  put("/d/global_step_10/x", "x");
  expect_refused(ErrorCode::kCorruption, "not a checkpoint in any known format", {"/d"});
}

TEST_F(DetectFormat, AnIterationOfMegatronThatCannotBeReadIsToldFor) {
  put("/d/iter_0000010/metadata.json", R"({"sharded_backend": "zarr"})");
  put("/d/latest_checkpointed_iteration.txt", "10");
  expect_refused(ErrorCode::kUnsupported, "a Megatron-Core checkpoint of a different back end", {"/d"});
  put("/d/iter_0000010/metadata.json", R"({"sharded_backend": "torch_d)");
  expect_refused(ErrorCode::kCorruption, "iteration that latest_checkpointed_iteration.txt names is not", {"/d"});
  put("/d/latest_checkpointed_iteration.txt", "ten");
  expect_refused(ErrorCode::kCorruption, "the file names no iteration", {"/d"});
}

TEST_F(DetectFormat, AUniversalCheckpointWithoutItsOptimizersFileIsStillOne) {
  put("/d/latest_universal", "global_step1");
  put("/d/global_step1/zero/w/fp32.pt", "x");
  EXPECT_EQ(detected({"/d"}), "deepspeed-universal");
  EXPECT_EQ(detected({"/d/global_step1"}), "deepspeed-universal");
}

TEST_F(DetectFormat, FoldersOfRanksAreMegatrons) {
  put("/d/iter_0000010/mp_rank_00_000/model_optim_rng.pt", "x");
  put("/d/latest_checkpointed_iteration.txt", "10\n");
  EXPECT_EQ(detected({"/d"}), "megatron");
  EXPECT_EQ(detected({"/d/iter_0000010"}), "megatron");
  put("/e/release/mp_rank_00/model_optim_rng.pt", "x");
  put("/e/latest_checkpointed_iteration.txt", "release");
  EXPECT_EQ(detected({"/e"}), "megatron");
}

TEST_F(DetectFormat, AnIterationThatIsMissingIsNamed) {
  put("/d/latest_checkpointed_iteration.txt", "10");
  expect_refused(ErrorCode::kNotFound, "iteration", {"/d"});
}

TEST_F(DetectFormat, KnownFoldersAreNamed) {
  const std::pair<const char*, const char*> folders[] = {
      {"/a/.snapshot_metadata", "torchsnapshot"},
      {"/b/metadata.pkl", "torch_checkpointing"},
      {"/h/x.gguf", "GGUF"},
      {"/j/_CHECKPOINT_METADATA", "Orbax"},
      {"/k/manifest.ocdbt", "Orbax"},
      {"/p/_METADATA", "Orbax"},
      {"/l/saved_model.pb", "TensorFlow"},
      {"/m/ckpt.data-00000-of-00001", "TensorFlow"},
      {"/n/flax_model.msgpack", "Flax"},
      {"/o/model.onnx", "ONNX"},
      {"/r/model_optim_rng.pt", "one rank of a Megatron-LM"},
  };
  for (const auto& [path, words] : folders) {
    put(path, "x");
    expect_refused(ErrorCode::kUnsupported, words, {std::string(path).substr(0, 2)});
  }
}

TEST_F(DetectFormat, FilesWithoutMagicAreNamedByTheirEnds) {
  const std::pair<const char*, const char*> files[] = {
      {"/model.onnx", "an ONNX model"},
      {"/flax_model.msgpack", "a Flax checkpoint"},
      {"/model.tflite", "a TensorFlow Lite model"},
      {"/model.ckpt.data-00000-of-00001", "a TensorFlow checkpoint"},
  };
  for (const auto& [path, words] : files) {
    put(path, "x");
    expect_refused(ErrorCode::kUnsupported, words, {path});
  }
}

TEST_F(DetectFormat, KindsOfOtherLibrariesComeWithTheCallsThatConvertThem) {
  put("/x.npz", zip_of("x", {"a.npy"}));
  put("/p.pt", zip_of("p", {".data/extern_modules"}));
  const std::tuple<const char*, const char*, const char*> kinds[] = {
      {"/x.npz", "", "numpy.load"},
      {"/p.pt", "", "PackageImporter"},
      {"/m.gguf", "GGUF", "gguf_file"},
      {"/o/_CHECKPOINT_METADATA", "x", "orbax.checkpoint"},
      {"/n/checkpoint_metadata.json", "{}", "convert_nanotron_to_hf.py"},
      {"/f.msgpack", "x", "msgpack_restore"},
      {"/checkpoint_1", "\x82\xa4step\x01\xa6params\x81", "msgpack_restore"},
      {"/s/checkpoint_1", "\x82\xa4step\x01\xa6params\x81", "msgpack_restore"},
      {"/t/saved_model.pb", "x", "tf.train.load_checkpoint"},
  };
  for (const auto& [path, content, words] : kinds) {
    if (*content != '\0') put(path, content);
    const std::string file = path;
    const std::size_t slash = file.rfind('/');
    const Error error = test::error_of([&] { detected({slash == 0 ? file : file.substr(0, slash)}); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << file;
    EXPECT_THAT(error.hint(), HasSubstr(words)) << file;
  }
}

TEST_F(DetectFormat, ARunOfAKindThatCannotBeReadIsRefusedByTheNameOfTheKind) {
  put("/run/latest.txt", "20");
  put("/run/20/checkpoint_metadata.json", "{}");
  expect_refused(ErrorCode::kUnsupported, "this is a nanotron checkpoint", {"/run"});
  put("/run/30/x.safetensors", kSafetensors);
  expect_refused(ErrorCode::kCorruption, "it contains one: 30", {"/run"});
}

TEST_F(DetectFormat, PartsOfLlamaAreReadThroughAMap) {
  put("/l/consolidated.00.pth", torch_save_zip({"data.pkl"}));
  Error error = test::error_of([&] { detected({"/l"}); });
  EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReadFolder, "/l/consolidated.00.pth"}));
  put("/parts/consolidated.00.pth", "x");
  put("/parts/consolidated.01.pth", "x");
  error = test::error_of([&] { detected({"/parts"}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.hint(), HasSubstr("the model map llama-pth"));
}

TEST_F(DetectFormat, DistcpFilesWithoutMetadataAreDcpWhoseReaderNamesTheMissingFile) {
  put("/d/__0_0.distcp", "x");
  const Source source{fs.get(), {"/d"}};
  ASSERT_EQ(detected({"/d"}), "dcp");
  const Error error = test::error_of([&] { detect_format(source).open(source, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_THAT(error.what(), HasSubstr(".metadata"));
}

TEST_F(DetectFormat, ByteCheckpointIsNotTakenForDcp) {
  put("/d/.metadata",
      "\x80\x04\x8c\x29"
      "bytecheckpoint.checkpointer.meta_type");
  put("/d/__0_0.distcp", "x");
  expect_refused(ErrorCode::kUnsupported, "ByteCheckpoint", {"/d"});
}

TEST_F(DetectFormat, AGitLfsPointerSaysHowToFetchTheFile) {
  put("/d/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  expect_refused(ErrorCode::kCorruption, "git lfs pull", {"/d/model.safetensors"});
}

TEST_F(DetectFormat, AWebPageThatWasSavedAsTheFileIsNamed) {
  put("/d/model.safetensors", "<!DOCTYPE html><html><body>Sign in</body></html>");
  expect_refused(ErrorCode::kCorruption, "web page", {"/d/model.safetensors"});
  put("/d/model.pt", "<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>");
  expect_refused(ErrorCode::kCorruption, "web page", {"/d/model.pt"});
}

TEST_F(DetectFormat, AFolderAmongSeveralPathsIsRefused) {
  put("/d/0.pt", "PK\x03\x04");
  expect_refused(ErrorCode::kInvalidArgument, "cannot be combined with other sources", {"/d", "/d/0.pt"});
}

}  // namespace
}  // namespace shard
