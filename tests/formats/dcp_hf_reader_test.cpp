#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/dcp_hf/names.h"
#include "formats/detect.h"
#include "tests/formats/dcp_hf_files.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::DcpHfFolder;
using test::kFirstData;
using test::kFirstHeader;
using test::kFirstName;
using test::kSecondData;
using test::kSecondHeader;
using test::kSecondName;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string text_of(const testing::ContentTensor& tensor) { return test::as_text(tensor.bytes); }

class DcpHfReader : public ::testing::Test {
 protected:
  DcpHfReader() {
    folder.put_first();
    folder.put_second();
  }
  std::string detected(const std::vector<std::string>& paths) const {
    return std::string(detect_format({folder.fs.get(), paths}).traits.name);
  }
  std::vector<std::string> warnings(const OpenOptions& options = {}) const {
    return folder.open(options)->catalog().warnings;
  }
  /// Records in both files that each rank of `ranks` has one, of `world_size`.
  void put_recorded(const std::string& ranks, const std::string& world_size) {
    for (const bool is_first : {true, false}) {
      std::string header = test::recorded(is_first ? kFirstHeader : kSecondHeader);
      header = test::changed(header, "\"0-1\"", "\"" + ranks + "\"");
      header = test::changed(header, "world_size\":\"2\"", "world_size\":\"" + world_size + "\"");
      is_first ? folder.put_first(header) : folder.put_second(header);
    }
  }

  DcpHfFolder folder;
};

TEST_F(DcpHfReader, JoinsThePiecesOfAllRanks) {
  const auto reader = folder.open();
  const testing::Content content = testing::read_content(*reader);
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content.at("w").shape, (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(text_of(content.at("w")), "aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj");
  EXPECT_EQ(text_of(content.at("b")), "1234");
}

TEST_F(DcpHfReader, SaysWhoWroteWhatWhere) {
  const auto reader = folder.open();
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.format, "dcp-hf");
  EXPECT_EQ(catalog.format_version, "1.0");
  EXPECT_EQ(catalog.world_size, 2);
  const auto chunks = catalog.chunks_of(*catalog.find("w"));
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(catalog.stored[chunks[1].stored].rank, 1);
  EXPECT_THAT(chunks[1].offsets.span(), ElementsAre(3, 0));
  EXPECT_THAT(chunks[1].sizes.span(), ElementsAre(2, 2));
  EXPECT_EQ(catalog.files[1].path, kSecondName);
  EXPECT_EQ(catalog.files[1].rank, 1);
}

TEST_F(DcpHfReader, KeepsOnlyTheMetadataThatIsNotItsOwn) {
  put_recorded("0-1", "2");
  EXPECT_THAT(folder.open()->catalog().metadata, ElementsAre(std::pair("format", "pt")));
}

TEST_F(DcpHfReader, OrdersFilesByRankWhateverTheirDigits) {
  for (int rank = 2; rank < 11; ++rank) {
    const std::string offset = "[" + std::to_string(1 + 2 * rank) + ", 0]";
    folder.put("shard-" + std::to_string(rank + 1) + "-model-1-of-1.safetensors",
               test::changed(kSecondHeader, "[3, 0]", offset), kSecondData);
  }
  EXPECT_EQ(folder.open()->catalog().files.back().rank, 10);
  EXPECT_EQ(folder.open()->catalog().world_size, 11);
}

TEST_F(DcpHfReader, AShardWithTheBoxesOfAnotherMayBeACopy) {
  folder.put(kSecondName, kFirstHeader, kFirstData);
  EXPECT_THAT(warnings(), Contains(HasSubstr(kFirstName + " and " + kSecondName + " contain the same boxes")));
  CollectedFindings found;
  OpenOptions options;
  options.findings = &found;
  folder.open(options);
  ASSERT_EQ(found.warnings().size(), 2U);
  EXPECT_EQ(found.warnings()[1].kind(), FindingKind::kRankMismatch);
  EXPECT_EQ(found.warnings()[1].file(), kSecondName);
}

TEST_F(DcpHfReader, EqualPiecesAreReplicas) {
  folder.put("shard-00003-model-00001-of-00001.safetensors", kSecondHeader, kSecondData);
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().find("w")->chunk_count, 3U);
  EXPECT_EQ(text_of(testing::read_content(*reader).at("w")), "aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj");
}

TEST_F(DcpHfReader, ARankMaySortItsTensorsIntoSeveralFiles) {
  DcpHfFolder sorted;
  const std::string b = R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"b\": {\"saved_offsets\": [0]}}"},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const std::string w = test::changed(kSecondHeader, "[3, 0]", "[0, 0]");
  sorted.put("shard-00001-model-00001-of-00002.safetensors", w, kSecondData);
  sorted.put("shard-00001-model-00002-of-00002.safetensors", b, "1234");
  sorted.put("shard-00002-model-00001-of-00002.safetensors", test::changed(kSecondHeader, "[3, 0]", "[2, 0]"),
             kSecondData);
  const auto reader = sorted.open();
  EXPECT_EQ(text_of(testing::read_content(*reader).at("b")), "1234");
  EXPECT_THAT(reader->catalog().find("w")->shape.span(), ElementsAre(4, 2));
}

TEST_F(DcpHfReader, ANumberThatNoRankHasIsMissing) {
  DcpHfFolder lacking;
  lacking.put("shard-00001-model-00001-of-00003.safetensors", kFirstHeader, kFirstData);
  lacking.put("shard-00002-model-00003-of-00003.safetensors", kSecondHeader, kSecondData);
  const Error error = test::error_of([&] { lacking.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.file(), "/d/shard-00001-model-00002-of-00003.safetensors");
}

TEST_F(DcpHfReader, AMissingRankBetweenOthersIsNamed) {
  DcpHfFolder lacking;
  lacking.put_second();
  const Error error = test::error_of([&] { lacking.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_EQ(error.file(), "/d/" + kFirstName);
}

TEST_F(DcpHfReader, AMissingLastRankCannotBeSeenAndIsWarnedOf) {
  EXPECT_THAT(warnings(), Contains(HasSubstr("a missing last rank cannot be detected")));
}

TEST_F(DcpHfReader, RanksExpectedFindsAMissingLastRank) {
  OpenOptions options;
  options.ranks_expected = 3;
  const Error error = test::error_of([&] { folder.open(options); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.rank(), 2);
  EXPECT_EQ(error.file(), "/d/shard-00003-model-00001-of-00001.safetensors");
  options.ranks_expected = 2;
  EXPECT_THAT(warnings(options), IsEmpty());
}

TEST_F(DcpHfReader, MoreRanksThanExpectedAreRefused) {
  OpenOptions options;
  options.ranks_expected = 1;
  const Error error = test::error_of([&] { folder.open(options); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.file(), kSecondName);
}

TEST_F(DcpHfReader, RecordedFilesNeedNoWarning) {
  put_recorded("0-1", "4");  // Ranks 2 and 3 have no data.
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(DcpHfReader, RecordedFilesSayWhichLastRankIsMissing) {
  put_recorded("0-2", "4");
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.rank(), 2);
}

TEST_F(DcpHfReader, RecordedFilesRefuseAStrangersFile) {
  put_recorded("0-1", "4");
  const std::string empty =
      test::changed(kSecondHeader, R"(,"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})", "");
  std::string header = test::changed(test::recorded(empty), R"({\"w\": {\"saved_offsets\": [3, 0]}})", "{}");
  header = test::changed(test::changed(header, R"({\"w\": [5, 2]})", "{}"), "world_size\":\"2\"", "world_size\":\"4\"");
  folder.put("shard-00003-model-00001-of-00001.safetensors", header, "");
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.rank(), 2);
}

TEST_F(DcpHfReader, ARecordedWorldSizeIsComparedWithTheExpectedOne) {
  put_recorded("0-1", "4");
  OpenOptions options;
  options.ranks_expected = 2;
  const Error error = test::error_of([&] { folder.open(options); });
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.expected(), "2");
  EXPECT_EQ(error.found(), "4");
}

TEST_F(DcpHfReader, ARecordedShapeFindsALostEnd) {
  put_recorded("0-1", "2");
  for (const bool is_first : {true, false}) {
    std::string header = test::changed(test::recorded(is_first ? kFirstHeader : kSecondHeader), "[5, 2]", "[6, 2]");
    is_first ? folder.put_first(header) : folder.put_second(header);
  }
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kGap);
  EXPECT_EQ(error.tensor(), "w");
}

TEST_F(DcpHfReader, EmptyPiecesMayLiePastTheEnd) {
  const std::string empty =
      test::changed(test::changed(kSecondHeader, "[2,2],\"data_offsets\":[0,16]", "[0,2],\"data_offsets\":[0,0]"),
                    "[3, 0]", "[9, 0]");
  folder.put("shard-00003-model-00001-of-00001.safetensors", empty, "");
  EXPECT_THAT(folder.open()->catalog().find("w")->shape.span(), ElementsAre(5, 2));
}

/// Rank 1's rows 3 and 4, each under a separate key, as written by a torch that puts several pieces into a file.
const std::string kTwoPieces =
    R"({"__metadata__":{"DCP_SHARDING_INFO":")"
    R"({\"w.__dcp_shard_0\": {\"logical_fqn\": \"w\", \"saved_offsets\": [4, 0], \"global_shape\": [5, 2]}, )"
    R"(\"w.__dcp_shard_1\": {\"logical_fqn\": \"w\", \"saved_offsets\": [3, 0], \"global_shape\": [5, 2]}}",)"
    R"("DCP_VERSION":"1.0","format":"pt"},"w.__dcp_shard_0":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
    R"("w.__dcp_shard_1":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";

TEST_F(DcpHfReader, PiecesUnderKeysOfTheirOwnAreOfTheTensorThatTheyName) {
  folder.put_second(kTwoPieces);
  const auto reader = folder.open();
  const testing::Content content = testing::read_content(*reader);
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content.at("w").shape, (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(text_of(content.at("w")), "aaaabbbbccccddddeeeeffffiiiijjjjgggghhhh");
}

TEST_F(DcpHfReader, AKeyMayBeNamedLikeAnotherTensor) {
  std::string swapped = kTwoPieces;
  for (std::size_t at; (at = swapped.find("w.__dcp_shard_0")) != std::string::npos;) swapped.replace(at, 15, "b");
  folder.put_second(swapped);
  const testing::Content content = testing::read_content(*folder.open());
  EXPECT_EQ(text_of(content.at("b")), "1234");
  EXPECT_EQ(text_of(content.at("w")), "aaaabbbbccccddddeeeeffffiiiijjjjgggghhhh");
}

TEST_F(DcpHfReader, NamesOfTensorsMayHaveEscapes) {
  folder.put_second(test::changed(kSecondHeader, "[3, 0]", R"([3, 0], \"logical_fqn\": \"\\u0077\")"));
  EXPECT_THAT(folder.open()->catalog().find("w")->shape.span(), ElementsAre(5, 2));
}

TEST_F(DcpHfReader, AGlobalShapeShowsThatTheLastPieceIsMissing) {
  DcpHfFolder cut;
  cut.put_first(test::changed(kFirstHeader, "[0, 0]", R"([0, 0], \"global_shape\": [5, 2])"));
  const Error error = test::error_of([&] { cut.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kGap);
  EXPECT_EQ(error.tensor(), "w");
}

TEST_F(DcpHfReader, AWholeTensorIsNotAPieceThoughItsGlobalShapeIsWritten) {
  DcpHfFolder whole;
  const std::string name = "model-00001-of-00001.safetensors";
  whole.put(name,
            test::changed(test::changed(kFirstHeader, "[0, 0]", R"([0, 0], \"global_shape\": [3, 2])"), "[0]",
                          R"([0], \"global_shape\": [4])"),
            kFirstData);
  const auto reader = format_named("safetensors").open({whole.fs.get(), {"/d/" + name}}, {});
  EXPECT_THAT(reader->catalog().find("w")->shape.span(), ElementsAre(3, 2));
}

TEST_F(DcpHfReader, PiecesUnderKeysOfTheirOwnAreNotWholeTensors) {
  DcpHfFolder alone;
  const std::string name = "model-00001-of-00001.safetensors";
  std::string header = kTwoPieces;
  for (const char* offsets : {"[4, 0]", "[3, 0]"}) header = test::changed(header, offsets, "[0, 0]");
  alone.put(name, header, kSecondData);
  const Error error = test::error_of([&] { format_named("safetensors").open({alone.fs.get(), {"/d/" + name}}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
}

TEST_F(DcpHfReader, IsFoundByContentInAFolderAndInFiles) {
  EXPECT_EQ(detected({"/d"}), "dcp-hf");
  EXPECT_EQ(detected({"/d/" + kFirstName}), "dcp-hf");
  EXPECT_EQ(detected({"/d/" + kFirstName, "/d/" + kSecondName}), "dcp-hf");
}

TEST_F(DcpHfReader, ATensorOfTheKeysNameIsNoShard) {
  folder.state->put("/e/x.safetensors",
                    test::as_span(test::safetensors_file(
                        R"({"DCP_SHARDING_INFO":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234")));
  EXPECT_EQ(detected({"/e"}), "safetensors");
}

TEST_F(DcpHfReader, OneFileOfSeveralIsRefusedNamingTheOthers) {
  const Error error = test::error_of([&] { format_named("dcp-hf").open({folder.fs.get(), {"/d/" + kFirstName}}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.file(), "/d/" + kSecondName);
  EXPECT_THAT(error.suggestions(), ElementsAre(Suggestion{Remedy::kReadFolder, "/d"}));
}

TEST_F(DcpHfReader, FilesOfSeveralFoldersAreJoined) {
  folder.state->put("/e/" + kSecondName, test::as_span(test::safetensors_file(kSecondHeader, kSecondData)));
  DcpHfFolder apart;
  apart.put_first();
  apart.state->put("/e/" + kSecondName, test::as_span(test::safetensors_file(kSecondHeader, kSecondData)));
  const auto reader = format_named("dcp-hf").open({apart.fs.get(), {"/e/" + kSecondName, "/d/" + kFirstName}}, {});
  EXPECT_EQ(text_of(testing::read_content(*reader).at("w")), "aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj");
}

TEST_F(DcpHfReader, AConsolidatedFolderIsSafetensorsWithANote) {
  const std::string header = R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  folder.state->put("/c/model-00001-of-00001.safetensors", test::as_span(test::safetensors_file(header, "1234")));
  folder.state->put("/c/model.safetensors.index.json",
                    test::as_span(R"({"weight_map":{"b":"model-00001-of-00001.safetensors"}})"));
  folder.state->put("/c/sharded/" + kFirstName, test::as_span(test::safetensors_file(kFirstHeader, kFirstData)));
  const Source source{folder.fs.get(), {"/c"}};
  ASSERT_EQ(detected({"/c"}), "safetensors");
  EXPECT_THAT(detect_format(source).open(source, {})->catalog().warnings, Contains(HasSubstr("sharded/")));
  EXPECT_EQ(detected({"/c/sharded"}), "dcp-hf");
}

TEST_F(DcpHfReader, AFullSaveOfOneProcessIsReadWithItsIndexAndWithout) {
  const std::string header =
      R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"b\": {\"saved_offsets\": [0]}}","DCP_VERSION":"1.0"},)"
      R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  folder.state->put("/f/model-00001-of-00001.safetensors", test::as_span(test::safetensors_file(header, "1234")));
  const Source source{folder.fs.get(), {"/f"}};
  ASSERT_EQ(detected({"/f"}), "dcp-hf");
  const auto alone = format_named("dcp-hf").open(source, {});
  EXPECT_EQ(text_of(testing::read_content(*alone).at("b")), "1234");
  EXPECT_EQ(alone->catalog().world_size, std::nullopt);
  folder.state->put("/f/model.safetensors.index.json",
                    test::as_span(R"({"weight_map":{"b":"model-00001-of-00001.safetensors"}})"));
  ASSERT_EQ(detected({"/f"}), "safetensors");
  const auto indexed = format_named("safetensors").open(source, {});
  EXPECT_EQ(text_of(testing::read_content(*indexed).at("b")), "1234");
  EXPECT_THAT(indexed->catalog().metadata, IsEmpty());
}

TEST_F(DcpHfReader, ShardsAreNotReadAsWholeTensors) {
  for (const std::string& name : {kFirstName, kSecondName}) {
    const Error error = test::error_of([&] {
      format_named("safetensors").open({folder.fs.get(), {"/d/" + name}}, {});
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.suggestions(), ElementsAre(Suggestion{Remedy::kReadAs, "dcp-hf"}));
  }
}

TEST_F(DcpHfReader, OtherFilesOfTheFolderAreNamed) {
  folder.state->put("/d/config.json", test::as_span("{}"));
  EXPECT_THAT(warnings(), Contains(HasSubstr("config.json")));
}

TEST_F(DcpHfReader, AFolderWithoutShardsIsNotFound) {
  test::expect_error(ErrorCode::kNotFound, "does not contain a shard", [&] {
    format_named("dcp-hf").open({folder.fs.get(), {"/"}}, {});
  });
}

TEST_F(DcpHfReader, ReportsWhatItCanAndGoesOn) {
  CollectedFindings findings;
  OpenOptions options;
  options.findings = &findings;
  folder.put("shard-00004-model-00001-of-00001.safetensors", "[]", "");
  const auto reader = folder.open(options);
  EXPECT_THAT(findings.kinds(), ElementsAre(FindingKind::kBadHeader, FindingKind::kMissingFile));
  EXPECT_EQ(text_of(testing::read_content(*reader).at("b")), "1234");
}

TEST(DcpHfRuns, AreWrittenAndRead) {
  const std::int64_t numbers[] = {0, 1, 2, 5, 7, 8};
  EXPECT_EQ(dcp_hf::to_string(dcp_hf::runs_of(numbers)), "0-2,5,7-8");
  EXPECT_EQ(dcp_hf::parse_runs("0-2,5,7-8"), dcp_hf::runs_of(numbers));
}

TEST(DcpHfRuns, MissingNumbersOfHugeRunsAreFoundAtOnce) {
  const dcp_hf::NumberRuns missing = dcp_hf::missing_from({{0, 2'000'000'000}}, {{0, 3}, {7, 7}});
  EXPECT_EQ(missing, (dcp_hf::NumberRuns{{4, 6}, {8, 2'000'000'000}}));
  EXPECT_EQ(dcp_hf::count_of(missing), 1'999'999'996);
  EXPECT_THAT(dcp_hf::first_few(missing), ElementsAre(4, 5, 6));
}

}  // namespace
}  // namespace shard
