// Files and folders of whole tensors: safetensors and torch.
#include <fmt/format.h>

#include "tests/repair/damage.h"

namespace shard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Repair, OfWhatIsWholeIsACopyWithoutANote) {
  for (const char* format : {"safetensors", "torch", "dcp"}) {
    write(format);
    repair();
    EXPECT_THAT(lost(), IsEmpty());
    EXPECT_THAT(result.at("repaired"), IsEmpty());
    expect_saved({"a", "b", "c", "d"});
    remove("/c");
    remove("/d");
  }
}

TEST_F(Repair, NeverWritesToTheSource) {
  write("torch", WholeLayout{}, "/m.pt");
  cut("/m.pt", file("/m.pt").size() - 100);
  const std::string before = file("/m.pt");
  ASSERT_EQ(world.run({"repair", "/m.pt", "-o", "/m.pt", "--force"}), 5);
  EXPECT_EQ(file("/m.pt"), before);
}

TEST_F(Repair, OfACutSafetensorsFileKeepsTheTensorsThatLieBeforeTheCut) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  cut("/m.safetensors", file("/m.safetensors").find("DDD") + 100);
  repair(0, {}, "/m.safetensors", "/d.safetensors");
  EXPECT_THAT(lost(), ElementsAre("d"));
  EXPECT_EQ(result.at("lost")[0].at("dtype"), "uint8");
  EXPECT_EQ(result.at("lost")[0].at("shape"), nlohmann::json({303}));
  EXPECT_THAT(std::string(result.at("lost")[0].at("why")), HasSubstr("203 bytes are missing"));
  expect_saved({"a", "b", "c"}, "/d.safetensors");
}

TEST_F(Repair, OfASafetensorsFileWithBytesBehindItsDataLeavesThemOut) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  put("/m.safetensors", file("/m.safetensors") + "appended");
  repair(0, {}, "/m.safetensors", "/d.safetensors");
  EXPECT_THAT(std::string(result.at("repaired")[0]), HasSubstr("8 bytes at the end"));
  expect_saved({"a", "b", "c", "d"}, "/d.safetensors");
}

TEST_F(Repair, OfADamagedSafetensorsHeaderSavesNothingAndSaysWhy) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  flip("/m.safetensors", "data_offsets", 12);
  repair(4, {}, "/m.safetensors", "/d.safetensors");
  EXPECT_THAT(std::string(result.at("message")), HasSubstr("nothing in it is intact"));
}

TEST_F(Repair, OfAFolderMakesItsIndexAnew) {
  write("safetensors", ShardsLayout{4});
  for (const bool is_there : {true, false}) {
    remove("/c/model.safetensors.index.json");
    if (is_there) put("/c/model.safetensors.index.json", "{\"weight_map\": {");
    repair(0, {"--shards", "2"});
    EXPECT_EQ(result.at("repaired").size(), is_there ? 1U : 0U);
    EXPECT_EQ(world.fs->status("/d/model.safetensors.index.json").kind, FileKind::kFile);
    expect_saved({"a", "b", "c", "d"});
    remove("/d");
  }
}

TEST_F(Repair, OfAFolderWithoutAShardNamesTheTensorsThatTheIndexPlacesThere) {
  for (const char* format : {"safetensors", "torch"}) {
    write(format, ShardsLayout{4});
    const std::string name =
        std::string(format) == "torch" ? "/c/pytorch_model-00002-of-00004.bin" : "/c/model-00002-of-00004.safetensors";
    remove(name);
    repair();
    EXPECT_THAT(lost(), ElementsAre("b"));
    EXPECT_EQ(lost_without_name(), 1U);  // The file.
    expect_saved({"a", "c", "d"});
    remove("/c");
    remove("/d");
  }
}

TEST_F(Repair, OfAFolderWithoutIndexAndShardSaysThatAPartIsMissing) {
  write("torch", ShardsLayout{4});
  remove("/c/pytorch_model.bin.index.json");
  remove("/c/pytorch_model-00003-of-00004.bin");
  repair();
  EXPECT_EQ(lost_without_name(), 1U);
  EXPECT_THAT(std::string(result.at("lost")[0].at("file")), HasSubstr("pytorch_model-00003-of-00004.bin"));
  expect_saved({"a", "b", "d"});
}

// ---- an index that contradicts its files

struct Indexed : Repair, ::testing::WithParamInterface<const char*> {
  bool is_torch = std::string_view(GetParam()) == "torch";

  std::string part(int number, int of) const {
    return is_torch ? fmt::format("/c/pytorch_model-{:05}-of-{:05}.bin", number, of)
                    : fmt::format("/c/model-{:05}-of-{:05}.safetensors", number, of);
  }
  std::string index() const { return is_torch ? "/c/pytorch_model.bin.index.json" : "/c/model.safetensors.index.json"; }
  std::string why(const std::string& name) const {
    for (const auto& loss : result.at("lost")) {
      if (loss.at("name") == name) return loss.at("why");
    }
    return {};
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, Indexed, ::testing::Values("safetensors", "torch"));

TEST_P(Indexed, WithExchangedFilesHasEachTensorOnce) {
  write(GetParam(), ShardsLayout{4});
  const std::string second = file(part(2, 4)), third = file(part(3, 4));
  put(part(2, 4), third);
  put(part(3, 4), second);
  repair();
  EXPECT_THAT(lost(), IsEmpty());
  ASSERT_EQ(result.at("repaired").size(), 1U);
  EXPECT_THAT(std::string(result.at("repaired")[0]), HasSubstr("index.json: corrected the files of 'b', 'c'"));
  expect_saved({"a", "b", "c", "d"});
}

TEST_P(Indexed, WithACopyInPlaceOfAFileLosesOnlyThatFilesTensor) {
  write(GetParam(), ShardsLayout{4});
  put(part(2, 4), file(part(1, 4)));
  repair();
  EXPECT_THAT(lost(), ElementsAre("b"));
  EXPECT_EQ(lost_without_name(), 0U);
  expect_saved({"a", "c", "d"});
}

TEST_P(Indexed, ThatNamesAMissingFileForATensorOfAnotherLosesNothing) {
  write(GetParam(), ShardsLayout{2});
  std::string text = file(index());
  const std::size_t at = text.find("-00001-of", text.find("\"a\""));
  ASSERT_NE(at, text.npos);
  put(index(), text.replace(at, 6, "-00007"));
  repair();
  EXPECT_TRUE(result.at("lost").empty());
  EXPECT_EQ(result.at("repaired").size(), 1U);
  expect_saved({"a", "b", "c", "d"});
}

TEST_P(Indexed, DoesNotDecideBetweenTwoOtherCopies) {
  write(GetParam(), ShardsLayout{4});
  put(part(3, 4), file(part(2, 4)));
  put(part(4, 4), file(part(2, 4)));
  remove(part(2, 4));
  repair();
  EXPECT_THAT(lost(), ElementsAre("b", "c", "d"));
  EXPECT_THAT(why("b"), HasSubstr("several other files contain it"));
  EXPECT_EQ(lost_without_name(), 1U);  // The file.
  expect_saved({"a"});
}

// ---- torch files

struct TorchFile : Repair {
  TorchFile() { write("torch", WholeLayout{}, "/m.pt"); }
  void repair_file(int code = 0) { repair(code, {}, "/m.pt", "/d.pt"); }
  void expect_file(const std::vector<std::string>& names) { expect_saved(names, "/d.pt"); }
};

TEST_F(TorchFile, CutInATensorKeepsThoseBefore) {
  cut("/m.pt", file("/m.pt").find("CCC") + 10);
  repair_file();
  EXPECT_THAT(lost(), ElementsAre("c", "d"));
  EXPECT_THAT(std::string(result.at("repaired")[0]), HasSubstr("rebuilt the zip's directory"));
  expect_file({"a", "b"});
}

TEST_F(TorchFile, CutAtEveryByteLosesNoTensorThatIsWhole) {
  const std::string whole = file("/m.pt");
  const std::size_t first = whole.find("AAA") + 300 + 16;  // With its descriptor.
  std::size_t before = 0;
  for (std::size_t bytes = first; bytes < whole.size(); bytes += 7) {
    put("/m.pt", whole.substr(0, bytes));
    repair_file();
    const std::size_t saved = result.at("tensors");
    EXPECT_GE(saved, before) << bytes;
    std::size_t complete = 0;
    for (const char* letters : {"AAA", "BBB", "CCC", "DDD"}) {
      const std::size_t bytes_of = 300 + static_cast<std::size_t>(*letters - 'A');
      if (whole.find(letters) + bytes_of + 16 <= bytes) ++complete;
    }
    EXPECT_EQ(saved, complete) << bytes;
    before = saved;
    remove("/d.pt");
  }
  EXPECT_EQ(before, 4U);
}

TEST_F(TorchFile, WithoutItsDirectoryIsWhole) {
  cut("/m.pt", file("/m.pt").find("PK\x01\x02"));
  repair_file();
  EXPECT_THAT(lost(), IsEmpty());
  expect_file({"a", "b", "c", "d"});
}

TEST_F(TorchFile, WithAFlippedElementLosesThatTensorAlone) {
  flip("/m.pt", "BBB", 150);
  repair_file();
  EXPECT_THAT(lost(), ElementsAre("b"));
  EXPECT_THAT(std::string(result.at("lost")[0].at("why")), HasSubstr("do not match their checksum"));
  expect_file({"a", "c", "d"});
}

TEST_F(TorchFile, LosesNothingThatWasLeftOutOnPurpose) {
  flip("/m.pt", "BBB", 150);
  repair(0, {"--exclude", "b"}, "/m.pt", "/d.pt");
  EXPECT_THAT(lost(), IsEmpty());
  expect_file({"a", "c", "d"});
  remove("/d.pt");
  repair(0, {"--include", "[ab]"}, "/m.pt", "/d.pt");
  EXPECT_THAT(lost(), ElementsAre("b"));
  expect_file({"a"});
}

TEST_F(TorchFile, WithAFlippedElementAndNoDirectoryLosesThatTensorAlone) {
  flip("/m.pt", "BBB", 150);
  cut("/m.pt", file("/m.pt").find("PK\x01\x02"));
  repair_file();
  EXPECT_THAT(lost(), ElementsAre("b"));
  expect_file({"a", "c", "d"});
}

TEST_F(TorchFile, WithAFlippedChecksumInItsDirectoryIsWhole) {
  const std::string whole = file("/m.pt");
  const std::string_view entry = "PK\x01\x02";
  int entries = 0;
  for (std::size_t at = whole.find(entry); at != whole.npos; at = whole.find(entry, at + 1), ++entries) {
    put("/m.pt", whole);
    flip("/m.pt", entry, 17, entries);
    repair_file();
    EXPECT_THAT(lost(), IsEmpty()) << entries;
    expect_file({"a", "b", "c", "d"});
    remove("/d.pt");
  }
  EXPECT_GE(entries, 8);  // Four tensors, the pickle, the byte order, the version, the id.
}

TEST_F(TorchFile, WithoutItsPickleCannotBeNamed) {
  flip("/m.pt", "data.pkl", 200);
  repair_file(4);
  EXPECT_THAT(std::string(result.at("message")), HasSubstr("nothing in it is intact"));
  EXPECT_THAT(world.err, HasSubstr("cannot find the tensors in the file: data.pkl is lost"));
}

TEST_F(TorchFile, WithAnyOneFlippedBitKeepsAllButOneTensorOrSaysThatNothingIsNamed) {
  const std::string whole = file("/m.pt");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 3) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    put("/m.pt", damaged);
    const int code = world.run({"repair", "/m.pt", "-o", "/d.pt", "--json", "--from", "torch"});
    ASSERT_TRUE(code == 0 || code == 4) << at << world.err;
    if (code == 4) {
      ++refused;
      continue;
    }
    const Content saved = read_content(*open_checkpoint(*world.fs, "/d.pt"));
    EXPECT_GE(saved.size(), 3U) << at;
    for (const auto& [name, tensor] : saved) EXPECT_TRUE(tensor == content.at(name)) << at << name;
    remove("/d.pt");
  }
  const std::size_t pickle = whole.find(".format_version") - whole.find("data.pkl");
  EXPECT_LE(refused, static_cast<int>(pickle + 1000) / 3);  // In the pickle, the byte order, or around them.
}

TEST_F(TorchFile, WithAZipInATensorIsNotMistakenForIt) {
  const std::string inner = file("/m.pt");
  content["b"] = filled(DType::kUint8, {std::ssize(inner)}, 'B');
  std::ranges::copy(test::as_span(inner), content["b"].bytes.begin());
  remove("/m.pt");
  write("torch", WholeLayout{}, "/m.pt");
  const std::string outer = file("/m.pt");
  const std::size_t nested = outer.find(inner);
  ASSERT_NE(nested, outer.npos);
  cut("/m.pt", nested + inner.size() + 8);  // The descriptor after it is truncated, and everything that follows.
  repair_file();
  EXPECT_THAT(lost(), ElementsAre("b", "c", "d"));
  expect_file({"a"});
}

TEST_F(TorchFile, KeepsItsObjectsAndTheirOrder) {
  ASSERT_EQ(world.run({"repair", "/m.pt", "-o", "/d.pt", "--objects", "drop"}), 0);
  EXPECT_EQ(read_content(*open_checkpoint(*world.fs, "/d.pt")).size(), 4U);
}

TEST_F(TorchFile, RepairedTwiceKeepsTheFirstNote) {
  flip("/m.pt", "BBB", 150);
  repair_file();
  flip("/d.pt", "CCC", 150);
  repair(0, {}, "/d.pt", "/e.pt");
  const auto note = read_lost_note(open_checkpoint(*world.fs, "/e.pt")->catalog());
  ASSERT_TRUE(note.has_value());
  ASSERT_EQ(note->count, 2);
  EXPECT_EQ(note->losses[0].name, "b");
  EXPECT_EQ(note->losses[1].name, "c");
}

// ---- the command line

TEST_F(Repair, ListsLossesOnStderrAndClipsThem) {
  for (int i = 0; i < 30; ++i) content["many." + std::to_string(i)] = filled(DType::kUint8, {64}, 'm');
  write("safetensors", WholeLayout{}, "/m.safetensors");
  cut("/m.safetensors", file("/m.safetensors").find("AAA"));
  repair(4, {}, "/m.safetensors", "/d.safetensors");
  content["zero"] = filled(DType::kInt64, {1}, 'z');  // Stands first in the file.
  remove("/m.safetensors");
  write("safetensors", WholeLayout{}, "/m.safetensors");
  cut("/m.safetensors", file("/m.safetensors").find("AAA"));
  ASSERT_EQ(world.run({"repair", "/m.safetensors", "-o", "/d.safetensors"}), 0);
  EXPECT_THAT(world.err, HasSubstr("lost: tensor 'a' (uint8) of m.safetensors: the header describes"));
  EXPECT_THAT(world.err, HasSubstr("lost: 24 more; --json lists all"));
}

TEST_F(Repair, DryRunSaysWhatWouldBeSavedAndWritesNothing) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  cut("/m.safetensors", file("/m.safetensors").find("DDD"));
  repair(0, {"--dry-run"}, "/m.safetensors", "/d.safetensors");
  EXPECT_EQ(result.at("schema"), "shardctl.plan/1");
  EXPECT_THAT(lost(), ElementsAre("d"));
  EXPECT_EQ(world.fs->status("/d.safetensors").kind, FileKind::kAbsent);
}

TEST_F(Repair, WhateverCallToTheDiskFailsEndsWithAnErrorOrAListedLoss) {
  for (const char* format : {"safetensors", "torch", "dcp"}) {
    write(format, ShardsLayout{2});
    bool is_failing = true;
    for (std::int64_t call = 0; is_failing; ++call) {
      ASSERT_LT(call, 2000);
      remove("/d");
      const std::int64_t before = world.state->calls();
      world.state->fail_at(before + call);
      const int code = world.run({"repair", "/c", "-o", "/d", "--json", "-j", "1"});
      is_failing = world.state->calls() > before + call;
      world.state->fail_at(-1);
      EXPECT_EQ(world.state->open_files(), 0) << format << call;
      ASSERT_THAT(code, ::testing::AnyOf(0, 3, 4, 6)) << format << call << world.err;
      if (code != 0) {
        EXPECT_EQ(world.fs->status("/d").kind, FileKind::kAbsent) << format << call;
        continue;
      }
      result = nlohmann::json::parse(world.out);
      const std::vector<std::string> names = lost();
      const Content saved = read_content(*open_checkpoint(*world.fs, "/d"));
      for (const auto& [name, tensor] : content) {
        const bool is_listed = std::ranges::count(names, name) > 0 || lost_without_name() > 0;
        EXPECT_TRUE(saved.contains(name) || is_listed) << format << call << name;
        EXPECT_TRUE(!saved.contains(name) || saved.at(name) == tensor) << format << call << name;
      }
    }
    remove("/c");
  }
}

TEST_F(Repair, AskedToStopEndsBeforeItWrites) {
  for (const char* format : {"safetensors", "torch", "dcp"}) {
    write(format);
    world.signal = 2;
    world.stop.request_stop();
    EXPECT_EQ(world.run({"repair", "/c", "-o", "/d"}), 130) << world.err;
    EXPECT_EQ(world.fs->status("/d").kind, FileKind::kAbsent);
    world.stop = std::stop_source();
    remove("/c");
  }
}

TEST_F(Repair, RefusesToRunAsSeveralRanks) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  world.env = {{"RANK", "0"},
               {"WORLD_SIZE", "2"},
               {"LOCAL_RANK", "0"},
               {"LOCAL_WORLD_SIZE", "2"},
               {"MASTER_ADDR", "localhost"},
               {"MASTER_PORT", "29500"},
               {"TORCHELASTIC_RUN_ID", "x"}};
  EXPECT_EQ(world.run({"repair", "/m.safetensors", "-o", "/d.safetensors"}), 8);
  EXPECT_THAT(world.err, HasSubstr("cannot repair with 2 ranks"));
}

TEST_F(Repair, ReplacesADestinationOnlyWithForce) {
  write("safetensors", WholeLayout{}, "/m.safetensors");
  put("/d.safetensors", "old");
  ASSERT_EQ(world.run({"repair", "/m.safetensors", "-o", "/d.safetensors"}), 5);
  EXPECT_EQ(file("/d.safetensors"), "old");
  ASSERT_EQ(world.run({"repair", "/m.safetensors", "-o", "/d.safetensors", "-f", "-j", "2", "--max-memory", "8MiB"}),
            0);
  EXPECT_NE(file("/d.safetensors"), "old");
}

}  // namespace
}  // namespace shard::testing
