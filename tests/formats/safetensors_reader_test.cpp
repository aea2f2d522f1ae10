#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/safetensors/format.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"
#include "tests/support/safetensors_file.h"

namespace shard {
namespace {

using test::safetensors_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file of one uint8 tensor of two elements for each name.
std::string file_with(const std::vector<std::string>& names, const std::string& metadata = "") {
  std::string header = "{" + metadata, data;
  for (const std::string& name : names) {
    if (header.size() > 1) header += ',';
    header += "\"" + name + R"(":{"dtype":"U8","shape":[2],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + 2) + "]}";
    data += "xy";
  }
  return safetensors_file(header + "}", data);
}

class SafetensorsReaderTest : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }
  std::unique_ptr<Reader> open(const std::vector<std::string>& paths) {
    return kSafetensorsFormat.open({fs.get(), paths}, {});
  }
  static std::vector<std::string> names(const Reader& reader) {
    std::vector<std::string> all;
    for (const Tensor& tensor : reader.catalog().tensors) all.emplace_back(tensor.name);
    return all;
  }
  static std::vector<std::string> files(const Reader& reader) {
    std::vector<std::string> all;
    for (const File& file : reader.catalog().files) all.push_back(file.path);
    return all;
  }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(SafetensorsReaderTest, OneFileIsACatalogWithPlaces) {
  put("/d/f.safetensors", file_with({"b", "a"}, R"("__metadata__":{"format":"pt"})"));
  const auto reader = open({"/d/f.safetensors"});
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.format, "safetensors");
  EXPECT_FALSE(catalog.world_size);
  EXPECT_THAT(names(*reader), ElementsAre("a", "b"));
  EXPECT_THAT(files(*reader), ElementsAre("f.safetensors"));
  EXPECT_THAT(catalog.metadata, ElementsAre(::testing::Pair("format", "pt")));
  EXPECT_EQ(catalog.tensors[0].rank, -1);
  const Storage& storage = catalog.storages[catalog.stored[catalog.chunks_of(catalog.tensors[0])[0].stored].storage];
  EXPECT_EQ(storage.offset, catalog.files[0].bytes - 2);
  EXPECT_EQ(storage.bytes, 2);
}

TEST_F(SafetensorsReaderTest, TheFileOfTheCatalogCanBeRead) {
  put("/d/f.safetensors", file_with({"a"}));
  const auto reader = open({"/d/f.safetensors"});
  std::vector<std::byte> out(2);
  reader->file(0)->read_at(reader->catalog().storages[0].offset, out);
  EXPECT_EQ(test::as_text(out), "xy");
}

TEST_F(SafetensorsReaderTest, FilesOfOneRankOfVllmMayBeOnlyAPart) {
  for (int part = 0; part < 2; ++part) {
    put("/v/model-rank-0-part-" + std::to_string(part) + ".safetensors", file_with({std::string(1, char('a' + part))}));
  }
  const auto reader = open({"/v"});
  EXPECT_THAT(names(*reader), ElementsAre("a", "b"));
  EXPECT_THAT(reader->catalog().warnings, ElementsAre(HasSubstr("do not record how many ranks wrote them")));
  CollectedFindings found;
  OpenOptions options;
  options.findings = &found;
  kSafetensorsFormat.open({fs.get(), {"/v/model-rank-0-part-0.safetensors"}}, options);
  ASSERT_EQ(found.warnings().size(), 1U);
  EXPECT_EQ(found.warnings()[0].file(), "model-rank-0-part-0.safetensors");
  EXPECT_TRUE(found.all().empty());
}

TEST_F(SafetensorsReaderTest, FilesOfVllmThatRecordOneRankAreWhole) {
  put("/v/model-rank-0-part-0.safetensors", file_with({"a"}, R"("__metadata__":{"shardctl.world_size":"1"})"));
  const auto reader = open({"/v"});
  EXPECT_THAT(reader->catalog().warnings, ElementsAre());
  EXPECT_TRUE(reader->catalog().metadata.empty());
}

TEST_F(SafetensorsReaderTest, AFolderWithoutIndexIsAllItsFiles) {
  put("/d/b.safetensors", file_with({"b"}));
  put("/d/a.safetensors", file_with({"a"}));
  const auto reader = open({"/d"});
  EXPECT_THAT(names(*reader), ElementsAre("a", "b"));
  EXPECT_THAT(files(*reader), ElementsAre("a.safetensors", "b.safetensors"));
}

TEST_F(SafetensorsReaderTest, OtherFilesOfTheFolderAreAWarning) {
  put("/d/a.safetensors", file_with({"a"}));
  put("/d/config.json", "{}");
  put("/d/.gitattributes", "");
  EXPECT_THAT(
      open({"/d"})->catalog().warnings,
      ElementsAre("other files of the folder are not part of the checkpoint, and are not copied: 'config.json'"));
}

TEST_F(SafetensorsReaderTest, APartThatTheOthersCountMustBeThereAlsoWithoutIndex) {
  put("/d/model-00001-of-00002.safetensors", file_with({"a"}));
  const Error error = test::error_of([this] { open({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_EQ(error.file(), "/d/model-00002-of-00002.safetensors");
}

TEST_F(SafetensorsReaderTest, APartThatIsNamedItselfIsReadAlone) {
  put("/d/model-00001-of-00002.safetensors", file_with({"a"}));
  EXPECT_THAT(names(*open({"/d/model-00001-of-00002.safetensors"})), ElementsAre("a"));
}

TEST_F(SafetensorsReaderTest, SeveralFilesAreOneCheckpoint) {
  put("/d/a.safetensors", file_with({"a"}));
  put("/e/b.safetensors", file_with({"b"}));
  const auto reader = open({"/d/a.safetensors", "/e/b.safetensors"});
  EXPECT_THAT(names(*reader), ElementsAre("a", "b"));
  EXPECT_THAT(files(*reader), ElementsAre("a.safetensors", "b.safetensors"));
}

TEST_F(SafetensorsReaderTest, FilesOfOneNameAreShownWithTheirPaths) {
  put("/d/x.safetensors", file_with({"a"}));
  put("/e/x.safetensors", file_with({"b"}));
  EXPECT_THAT(files(*open({"/d/x.safetensors", "/e/x.safetensors"})),
              ElementsAre("/d/x.safetensors", "/e/x.safetensors"));
}

TEST_F(SafetensorsReaderTest, OneNameInTwoFilesIsCorruption) {
  put("/d/a.safetensors", file_with({"x"}));
  put("/d/b.safetensors", file_with({"x"}));
  const Error error = test::error_of([&] { open({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kDuplicateName);
  EXPECT_STREQ(error.what(), "tensor 'x' is in a.safetensors and in b.safetensors");
}

TEST_F(SafetensorsReaderTest, AMissingFileIsNotFound) {
  test::expect_error(ErrorCode::kNotFound, "no such file", [&] { open({"/no.safetensors"}); });
}

TEST_F(SafetensorsReaderTest, MetadataThatDiffersBetweenFilesIsAWarning) {
  put("/d/a.safetensors", file_with({"a"}, R"("__metadata__":{"k":"1","format":"pt"})"));
  put("/d/b.safetensors", file_with({"b"}, R"("__metadata__":{"k":"2","format":"pt"})"));
  const auto reader = open({"/d"});
  EXPECT_EQ(reader->catalog().metadata.at("k"), "1");
  EXPECT_THAT(
      reader->catalog().warnings,
      ElementsAre(HasSubstr("__metadata__ of b.safetensors differs from that of an earlier file, which is kept: 'k'")));
}

TEST_F(SafetensorsReaderTest, EveryReadThatFailsIsReported) {
  put("/d/model.safetensors.index.json", R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  put("/d/a.safetensors", file_with({"a"}));
  put("/d/b.safetensors", file_with({"b"}));
  for (std::int64_t n = 0;; ++n) {
    const std::int64_t call = state->calls() + n;
    state->fail_at(call);
    try {
      open({"/d"});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotFound) << "call " << n;
      EXPECT_EQ(state->open_files(), 0) << "call " << n;
      continue;
    }
    EXPECT_LE(state->calls(), call);
    break;
  }
}

class IndexTest : public SafetensorsReaderTest {
 protected:
  IndexTest() {
    put("/d/a.safetensors", file_with({"a1", "a2"}));
    put("/d/b.safetensors", file_with({"b1"}));
  }
  void put_index(const std::string& weight_map) {
    put("/d/model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":{)" + weight_map + "}}");
  }
  static constexpr const char* kGood = R"("a1":"a.safetensors","a2":"a.safetensors","b1":"b.safetensors")";
};

TEST_F(IndexTest, NamesTheFilesToRead) {
  put_index(kGood);
  put("/d/stray.safetensors", file_with({"a1", "other"}));
  const auto reader = open({"/d"});
  EXPECT_THAT(names(*reader), ElementsAre("a1", "a2", "b1"));
  EXPECT_THAT(files(*reader), ElementsAre("a.safetensors", "b.safetensors"));
  EXPECT_THAT(reader->catalog().warnings,
              ElementsAre("skipped files that the index does not list: 'stray.safetensors'"));
}

TEST_F(IndexTest, MayBeGivenItself) {
  put_index(kGood);
  EXPECT_THAT(names(*open({"/d/model.safetensors.index.json"})), ElementsAre("a1", "a2", "b1"));
}

TEST_F(IndexTest, AMissingFileIsNotFoundByName) {
  put_index(R"("a1":"a.safetensors","c":"c.safetensors")");
  const Error error = test::error_of([&] { open({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_EQ(error.file(), "/d/c.safetensors");
}

TEST_F(IndexTest, ATensorThatItsFileLacksIsAMismatch) {
  put_index(R"("a1":"a.safetensors","a2":"a.safetensors","a3":"a.safetensors","b1":"b.safetensors")");
  const Error error = test::error_of([&] { open({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kIndexMismatch);
  EXPECT_EQ(error.tensor(), "a3");
}

TEST_F(IndexTest, ATensorInAnotherFileThanItSaysIsAMismatch) {
  put_index(R"("a1":"b.safetensors","a2":"a.safetensors","b1":"b.safetensors")");
  const Error error = test::error_of([&] { open({"/d"}); });
  EXPECT_EQ(error.kind(), FindingKind::kIndexMismatch);
  EXPECT_EQ(error.tensor(), "a1");
}

TEST_F(IndexTest, ATensorThatItDoesNotListIsReadWithAWarning) {
  put_index(R"("a1":"a.safetensors","b1":"b.safetensors")");
  const auto reader = open({"/d"});
  EXPECT_THAT(names(*reader), ElementsAre("a1", "a2", "b1"));
  EXPECT_THAT(reader->catalog().warnings, ElementsAre(HasSubstr("does not list are read from its files: 'a2'")));
}

TEST_F(IndexTest, DecidesBetweenTwoFilesThatHoldOneName) {
  put("/d/b.safetensors", file_with({"a1", "b1"}));
  put_index(kGood);
  const auto reader = open({"/d"});
  const Catalog& catalog = reader->catalog();
  ASSERT_THAT(names(*reader), ElementsAre("a1", "a2", "b1"));
  EXPECT_EQ(catalog.storages[catalog.stored[catalog.chunks_of(catalog.tensors[0])[0].stored].storage].file, 0U);
  EXPECT_THAT(catalog.warnings, ElementsAre(HasSubstr("in the index: 'a1'")));
}

TEST_F(IndexTest, FilesInFoldersBelowItAreRead) {
  put("/d/x/y/b.safetensors", file_with({"b1"}));
  put_index(R"("a1":"a.safetensors","a2":"a.safetensors","b1":"x/y/b.safetensors")");
  EXPECT_THAT(names(*open({"/d"})), ElementsAre("a1", "a2", "b1"));
}

TEST_F(IndexTest, FilesOutsideItsFolderAreRefused) {
  for (const char* name : {"../a.safetensors", "/etc/passwd", "x/../../a.safetensors", "x//a", "..", "", "a\\\\b"}) {
    put_index(std::string(R"("a1":")") + name + "\"");
    test::expect_error(ErrorCode::kCorruption, "the index places 'a1'", [&] { open({"/d"}); });
  }
}

TEST_F(IndexTest, ANameTwiceIsRefused) {
  put_index(R"("a1":"a.safetensors","a1":"b.safetensors")");
  EXPECT_EQ(test::error_of([&] { open({"/d"}); }).kind(), FindingKind::kDuplicateName);
}

TEST_F(IndexTest, BrokenJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{},"weight_map":{}})", R"({"weight_map":{}}x)"}) {
    put("/d/model.safetensors.index.json", text);
    EXPECT_EQ(test::error_of([&] { open({"/d"}); }).kind(), FindingKind::kBadHeader) << text;
  }
}

TEST_F(IndexTest, TheUsualOneOfTwoIsTaken) {
  put_index(kGood);
  put("/d/model.fp16.safetensors.index.json", R"({"weight_map":{"x":"x.safetensors"}})");
  EXPECT_THAT(names(*open({"/d"})), ElementsAre("a1", "a2", "b1"));
}

TEST_F(IndexTest, TwoUnusualOnesAreRefused) {
  put("/d/x.safetensors.index.json", R"({"weight_map":{}})");
  put("/d/y.safetensors.index.json", R"({"weight_map":{}})");
  const Error error = test::error_of([&] { open({"/d"}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.suggestions(), ElementsAre(Suggestion{Remedy::kReadFolder, "/d/x.safetensors.index.json"},
                                               Suggestion{Remedy::kReadFolder, "/d/y.safetensors.index.json"}));
}

TEST_F(IndexTest, OfAVariantIsReadIfItIsTheOnlyOne) {
  for (const char* name :
       {"model.safetensors.index.fp16.json", "model.fp16.safetensors.index.json",
        "diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.fp16.json"}) {
    const std::string folder = std::string("/of ") + name, path = folder + "/" + name;
    put(folder + "/a.safetensors", file_with({"a1"}));
    put(path, R"({"weight_map":{"a1":"a.safetensors"}})");
    EXPECT_THAT(names(*open({folder})), ElementsAre("a1")) << name;
    EXPECT_THAT(open({folder})->catalog().warnings, ElementsAre()) << name;
    EXPECT_THAT(names(*open({path})), ElementsAre("a1")) << name;
  }
}

TEST_F(IndexTest, WithoutAVariantIsPreferred) {
  put("/v/a.safetensors", file_with({"a1"}));
  put("/v/b.safetensors", file_with({"b1"}));
  put("/v/diffusion_pytorch_model.safetensors.index.json", R"({"weight_map":{"a1":"a.safetensors"}})");
  put("/v/diffusion_pytorch_model.safetensors.index.fp16.json", R"({"weight_map":{"b1":"b.safetensors"}})");
  put("/v/diffusion_pytorch_model.bf16.safetensors.index.json", R"({"weight_map":{"b1":"b.safetensors"}})");
  EXPECT_THAT(names(*open({"/v"})), ElementsAre("a1"));
}

TEST_F(IndexTest, AllFindingsAreReportedToASinkThatCollects) {
  put("/d/b.safetensors", "cut");
  put_index(R"("a1":"a.safetensors","a3":"a.safetensors","b1":"b.safetensors","c":"c.safetensors")");
  CollectedFindings findings;
  OpenOptions options;
  options.findings = &findings;
  const auto reader = kSafetensorsFormat.open({fs.get(), {"/d"}}, options);
  EXPECT_THAT(findings.kinds(), ElementsAre(FindingKind::kTruncated, FindingKind::kMissingFile,
                                            FindingKind::kIndexMismatch, FindingKind::kIndexMismatch));
  EXPECT_THAT(names(*reader), ElementsAre("a1", "a2"));
}

}  // namespace
}  // namespace shard
