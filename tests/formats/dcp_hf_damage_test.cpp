// Every field of names, headers and sharding infos changed once: the error, its file and tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/formats/dcp_hf_files.h"
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
using ::testing::HasSubstr;

constexpr ErrorCode kBad = ErrorCode::kCorruption;
constexpr ErrorCode kAbsent = ErrorCode::kNotFound;
constexpr ErrorCode kNo = ErrorCode::kUnsupported;

/// One change of the text of one header of the folder.
struct Change {
  const char* label;
  int file;  // 0 or 1.
  std::string from, to;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* tensor;  // "" if the error has none.
  const char* words;
};

std::string label_of(const ::testing::TestParamInfo<Change>& info) { return info.param.label; }

void expect_refused(const Change& change, bool is_recorded) {
  DcpHfFolder folder;
  const auto header = [&](int file, const std::string& text) {
    const std::string whole = is_recorded ? test::recorded(text) : text;
    return file == change.file ? test::changed(whole, change.from, change.to) : whole;
  };
  folder.put_first(header(0, kFirstHeader));
  folder.put_second(header(1, kSecondHeader));
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(code_name(error.code()), code_name(change.code)) << error.what();
  EXPECT_EQ(error.kind(), change.kind) << error.what();
  EXPECT_EQ(error.tensor(), change.tensor) << error.what();
  EXPECT_THAT(std::string(error.what()) + error.why(), HasSubstr(change.words));
  EXPECT_NE(error.file(), "") << error.what();
}

const Change kOthers[] = {
    {"NoShardingInfo", 1, "DCP_SHARDING_INFO", "DCP_SHARDING_INFX", kBad, FindingKind::kBadHeader, "",
     "no DCP_SHARDING_INFO"},
    {"InfoIsAList", 1, R"({\"w\": {\"saved_offsets\": [3, 0]}})", "[]", kBad, FindingKind::kBadHeader, "",
     "text of DCP_SHARDING_INFO"},
    {"InfoIsCut", 1, "[3, 0]}}", "[3, 0]", kBad, FindingKind::kBadHeader, "", "text of DCP_SHARDING_INFO"},
    {"InfoIsEmptyText", 1, R"("{\"w\": {\"saved_offsets\": [3, 0]}}")", "\"\"", kBad, FindingKind::kBadHeader, "",
     "expected '{'"},
    {"InfoIsANumber", 1, R"("{\"w\": {\"saved_offsets\": [3, 0]}}")", "1", kBad, FindingKind::kBadHeader, "",
     "expected '\"'"},
    {"InfoGoesOn", 1, "[3, 0]}}", "[3, 0]}} {}", kBad, FindingKind::kBadHeader, "", "more text"},
    {"EntryIsAList", 1, R"({\"saved_offsets\": [3, 0]})", "[3, 0]", kBad, FindingKind::kBadHeader, "", "expected '{'"},
    {"NoSavedOffsets", 1, R"({\"saved_offsets\": [3, 0]})", "{}", kBad, FindingKind::kBadHeader, "w",
     "lacks saved_offsets"},
    {"SavedOffsetsTwice", 1, "[3, 0]", R"([3, 0], \"saved_offsets\": [3, 0])", kBad, FindingKind::kBadHeader, "w",
     "two fields"},
    {"OffsetsAreAnObject", 1, "[3, 0]", "{}", kBad, FindingKind::kBadHeader, "", "expected '['"},
    {"OffsetIsAText", 1, "[3, 0]", R"([\"3\", 0])", kBad, FindingKind::kBadHeader, "", "whole number"},
    {"OffsetIsNegative", 1, "[3, 0]", "[-3, 0]", kBad, FindingKind::kBadHeader, "", "not negative"},
    {"OffsetIsAFraction", 1, "[3, 0]", "[3.0, 0]", kBad, FindingKind::kBadHeader, "", "whole number"},
    {"OffsetPast63Bits", 1, "[3, 0]", "[9223372036854775808, 0]", kBad, FindingKind::kBadHeader, "", "2^63"},
    {"EndPast63Bits", 1, "[3, 0]", "[9223372036854775807, 0]", kBad, FindingKind::kOutOfBounds, "w", ""},
    {"WholePast63Bits", 1, "[3, 0]", "[3, 4611686018427387904]", kBad, FindingKind::kBadHeader, "w", ""},
    {"TooFewOffsets", 1, "[3, 0]", "[3]", kBad, FindingKind::kShapeMismatch, "w", "1 saved_offsets"},
    {"TooManyOffsets", 1, "[3, 0]", "[3, 0, 0]", kBad, FindingKind::kShapeMismatch, "w", "3 saved_offsets"},
    {"SeventyOffsets", 1, "[3, 0]",
     "[3" +
         [] {
           std::string zeros;
           for (int i = 0; i < 70; ++i) zeros += ", 0";
           return zeros;
         }() +
         "]",
     kBad, FindingKind::kBadHeader, "w", "more than 64"},
    {"NameThatTheFileLacks", 1, R"({\"w\": )", R"({\"v\": {\"saved_offsets\": [0]}, \"w\": )", kBad,
     FindingKind::kIndexMismatch, "v", "the file does not contain"},
    {"NameOfTheOtherFile", 1, R"({\"w\": )", R"({\"b\": {\"saved_offsets\": [0]}, \"w\": )", kBad,
     FindingKind::kIndexMismatch, "b", "the file does not contain"},
    {"NameThatTheInfoLacks", 1, R"({\"w\": {\"saved_offsets\": [3, 0]}})", "{}", kBad, FindingKind::kIndexMismatch, "w",
     "lacks tensor 'w'"},
    {"NameTwice", 1, R"({\"w\": )", R"({\"w\": {\"saved_offsets\": [3, 0]}, \"w\": )", kBad,
     FindingKind::kDuplicateName, "w", "twice"},
    {"NameTwiceBySpelling", 1, R"({\"w\": )", R"({\"\\u0077\": {\"saved_offsets\": [3, 0]}, \"w\": )", kBad,
     FindingKind::kDuplicateName, "w", "twice"},
    {"TensorTwice", 0, R"("b":{"dtype")", R"("w":{"dtype")", kBad, FindingKind::kDuplicateName, "w", "appears twice"},
    {"UnknownField", 1, "[3, 0]", R"([3, 0], \"stride\": [1, 2])", kNo, std::nullopt, "w", "unknown field 'stride'"},
    {"NameIsANumber", 1, "[3, 0]", R"([3, 0], \"logical_fqn\": 1)", kBad, FindingKind::kBadHeader, "", "expected '\"'"},
    {"TwoNames", 1, "[3, 0]", R"([3, 0], \"logical_fqn\": \"w\", \"logical_fqn\": \"w\")", kBad,
     FindingKind::kBadHeader, "w", "two fields logical_fqn"},
    {"NameOfATensorOfOtherDims", 1, "[3, 0]", R"([3, 0], \"logical_fqn\": \"b\")", kBad, FindingKind::kDtypeMismatch,
     "b", "float32 here and uint8 in"},
    {"WholeShapeIsAText", 1, "[3, 0]", R"([3, 0], \"global_shape\": \"5\")", kBad, FindingKind::kBadHeader, "",
     "expected '['"},
    {"TwoWholeShapes", 1, "[3, 0]", R"([3, 0], \"global_shape\": [5, 2], \"global_shape\": [5, 2])", kBad,
     FindingKind::kBadHeader, "w", "two fields global_shape"},
    {"WholeShapeOfOtherDims", 1, "[3, 0]", R"([3, 0], \"global_shape\": [5])", kBad, FindingKind::kShapeMismatch, "w",
     "1 in global_shape"},
    {"WholeShapeTooSmall", 1, "[3, 0]", R"([3, 0], \"global_shape\": [4, 2])", kBad, FindingKind::kOutOfBounds, "w",
     "in a tensor of [4, 2]"},
    {"WholeShapePastThePieces", 1, "[3, 0]", R"([3, 0], \"global_shape\": [6, 2])", kBad, FindingKind::kGap, "w",
     "[5, 0]"},
    {"OtherVersion", 1, R"("DCP_VERSION":"1.0")", R"("DCP_VERSION":"2.0")", kNo, std::nullopt, "", "2.0"},
    {"GarbledVersion", 1, R"("DCP_VERSION":"1.0")", R"("DCP_VERSION":"")", kNo, std::nullopt, "", "DCP_VERSION ''"},
    {"OtherDtype", 1, "F32", "I32", kBad, FindingKind::kDtypeMismatch, "w", "int32 here and float32 in shard-00001"},
    {"OtherDims", 1, R"("shape":[2,2])", R"("shape":[4])", kBad, FindingKind::kShapeMismatch, "w", "2 saved_offsets"},
    {"OtherDimsInBoth", 1, R"([3, 0]}}","DCP_VERSION":"1.0","format":"pt"},"w":{"dtype":"F32","shape":[2,2])",
     R"([3]}}","DCP_VERSION":"1.0","format":"pt"},"w":{"dtype":"F32","shape":[4])", kBad, FindingKind::kShapeMismatch,
     "w", "dimensions of 1 here and 2 in"},
    {"AGap", 1, "[3, 0]", "[4, 0]", kBad, FindingKind::kGap, "w", "[3, 0]"},
    {"AGapAcross", 1, "[3, 0]", "[3, 1]", kBad, FindingKind::kGap, "w", ""},
    {"AnOverlap", 1, "[3, 0]", "[2, 0]", kBad, FindingKind::kOverlap, "w", "[2, 0]"},
    {"NothingAtTheOrigin", 0, R"({\"w\": {\"saved_offsets\": [0, 0]})", R"({\"w\": {\"saved_offsets\": [5, 0]})", kBad,
     FindingKind::kGap, "w", "[0, 0]"},
    {"WhatWeRecordInOneOnly", 1, "\"format\"", test::kRecorded + "\"format\"", kBad, FindingKind::kMixedSave, "",
     "two saves"},
};

class DcpHfDamage : public ::testing::TestWithParam<Change> {};
TEST_P(DcpHfDamage, IsRefused) { expect_refused(GetParam(), false); }
INSTANTIATE_TEST_SUITE_P(OfOthers, DcpHfDamage, ::testing::ValuesIn(kOthers), label_of);

const Change kRecordedOnes[] = {
    {"NoWorldSize", 1, "shardctl.world_size", "shardctl.wxrld_size", kBad, FindingKind::kBadHeader, "",
     "'shardctl.world_size' is missing"},
    {"NoRanks", 1, "shardctl.ranks", "shardctl.rxnks", kBad, FindingKind::kBadHeader, "",
     "'shardctl.ranks' is missing"},
    {"NoShapes", 1, "shardctl.shapes", "shardctl.shxpes", kBad, FindingKind::kBadHeader, "",
     "'shardctl.shapes' is missing"},
    {"WorldSizeIsText", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"two")", kBad,
     FindingKind::kBadHeader, "", "'two'"},
    {"WorldSizeIsNegative", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"-2")", kBad,
     FindingKind::kBadHeader, "", "'-2'"},
    {"WorldSizeIsZero", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"0")", kBad,
     FindingKind::kBadHeader, "", "'0'"},
    {"WorldSizeIsHuge", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"99999999999999999999")", kBad,
     FindingKind::kBadHeader, "", "number of ranks"},
    {"WorldSizeIsAList", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"1,2")", kBad,
     FindingKind::kBadHeader, "", "'1,2'"},
    {"WorldSizeDiffers", 1, R"("shardctl.world_size":"2")", R"("shardctl.world_size":"3")", kBad,
     FindingKind::kWorldSizeMismatch, "", "3 here and 2 in shard-00001"},
    {"RanksAreEmpty", 1, "\"0-1\"", "\"\"", kBad, FindingKind::kBadHeader, "", "list of ranks"},
    {"RanksRunBackwards", 1, "\"0-1\"", "\"1-0\"", kBad, FindingKind::kBadHeader, "", "'1-0'"},
    {"RanksAreNotInOrder", 1, "\"0-1\"", "\"1,0\"", kBad, FindingKind::kBadHeader, "", "'1,0'"},
    {"RanksPastTheWorld", 1, "\"0-1\"", "\"0-2\"", kBad, FindingKind::kBadHeader, "", "of 2 ranks"},
    {"RanksWithoutEnd", 1, "\"0-1\"", "\"0-\"", kBad, FindingKind::kBadHeader, "", "'0-'"},
    {"RanksDiffer", 1, "\"0-1\"", "\"1\"", kBad, FindingKind::kMixedSave, "", "1 here and 0-1 in"},
    {"ShapesAreAList", 1, R"({\"w\": [5, 2]})", "[]", kBad, FindingKind::kBadHeader, "", "text of shardctl.shapes"},
    {"ShapesNameAStranger", 1, R"({\"w\": [5, 2]})", R"({\"v\": [5, 2]})", kBad, FindingKind::kIndexMismatch, "v",
     "does not contain"},
    {"ShapesLackAPiece", 1, R"({\"w\": [5, 2]})", "{}", kBad, FindingKind::kIndexMismatch, "w",
     "shardctl.shapes lacks it"},
    {"ShapesLackThePieceAtTheOrigin", 0, R"({\"w\": [5, 2]})", "{}", kBad, FindingKind::kShapeMismatch, "w",
     "[5, 2] here and [3, 2] in"},
    {"ShapeTwice", 1, R"({\"w\": [5, 2]})", R"({\"w\": [5, 2], \"w\": [5, 2]})", kBad, FindingKind::kDuplicateName, "w",
     "twice"},
    {"ShapeOfOtherDims", 1, R"({\"w\": [5, 2]})", R"({\"w\": [5]})", kBad, FindingKind::kShapeMismatch, "w",
     "1 in shardctl.shapes"},
    {"ShapeTooSmall", 1, R"({\"w\": [5, 2]})", R"({\"w\": [4, 2]})", kBad, FindingKind::kOutOfBounds, "w",
     "in a tensor of [4, 2]"},
    {"ShapeDiffers", 1, R"({\"w\": [5, 2]})", R"({\"w\": [6, 2]})", kBad, FindingKind::kShapeMismatch, "w",
     "[6, 2] here and [5, 2]"},
    {"ShapeIsNotTheGlobalShape", 1, "[3, 0]", R"([3, 0], \"global_shape\": [6, 2])", kBad, FindingKind::kShapeMismatch,
     "w", "of shape [5, 2] by shardctl.shapes, and of [6, 2] by global_shape"},
    {"ShapePast63Bits", 1, R"({\"w\": [5, 2]})", R"({\"w\": [9223372036854775808, 2]})", kBad, FindingKind::kBadHeader,
     "", "2^63"},
};

class DcpHfRecordedDamage : public ::testing::TestWithParam<Change> {};
TEST_P(DcpHfRecordedDamage, IsRefused) { expect_refused(GetParam(), true); }
INSTANTIATE_TEST_SUITE_P(OfOurs, DcpHfRecordedDamage, ::testing::ValuesIn(kRecordedOnes), label_of);

TEST(DcpHfDamageTable, StartsFromGoodFolders) {
  DcpHfFolder others, ours;
  others.put_first();
  others.put_second();
  EXPECT_EQ(others.open()->catalog().tensors.size(), 2U);
  ours.put_first(test::recorded(kFirstHeader));
  ours.put_second(test::recorded(kSecondHeader));
  EXPECT_EQ(ours.open()->catalog().tensors.size(), 2U);
}

/// The second file under a different name.
struct Name {
  const char* label;
  std::string name;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* words;
};
const Name kNames[] = {
    {"NoPattern", "rank1.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"NoShardNumber", "shard--model-00001-of-00001.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"ShardZero", "shard-00000-model-00001-of-00001.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"NegativeShard", "shard--0001-model-00001-of-00001.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"ShardPast31Bits", "shard-4294967298-model-00001-of-00001.safetensors", kBad, FindingKind::kRankMismatch,
     "which rank"},
    {"NoModel", "shard-00002-of-00001.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"NoCount", "shard-00002-model-00001-of-.safetensors", kBad, FindingKind::kRankMismatch, "which rank"},
    {"TextAfterTheCount", "shard-00002-model-00001-of-00001x.safetensors", kBad, FindingKind::kRankMismatch,
     "which rank"},
    {"FileZero", "shard-00002-model-00000-of-00001.safetensors", kBad, FindingKind::kIndexMismatch, "file 0 of 1"},
    {"FilePastTheCount", "shard-00002-model-00002-of-00001.safetensors", kBad, FindingKind::kIndexMismatch,
     "file 2 of 1"},
    {"OtherCount", "shard-00002-model-00001-of-00002.safetensors", kBad, FindingKind::kMixedSave, "-of-2"},
    {"SameRankAgain", "shard-1-model-1-of-1.safetensors", kBad, FindingKind::kRankMismatch,
     "the same file of one rank"},
    {"NoShard", "model-00001-of-00001.safetensors", kBad, FindingKind::kMixedSave, "is not a shard"},
    {"AHole", "shard-00003-model-00001-of-00001.safetensors", kAbsent, FindingKind::kMissingFile, "no file of rank 1"},
    {"AHugeHole", "shard-2147483647-model-00001-of-00001.safetensors", kAbsent, FindingKind::kMissingFile,
     "no file of rank 1, 2, 3 and 2147483642 more"},
};
class DcpHfNames : public ::testing::TestWithParam<Name> {};
TEST_P(DcpHfNames, AreRefused) {
  DcpHfFolder folder;
  folder.put_first();
  folder.put(GetParam().name, kSecondHeader, kSecondData);
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(code_name(error.code()), code_name(GetParam().code)) << error.what();
  EXPECT_EQ(error.kind(), GetParam().kind) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
  EXPECT_NE(error.file(), "");
}
INSTANTIATE_TEST_SUITE_P(Table, DcpHfNames, ::testing::ValuesIn(kNames),
                         [](const auto& each) { return std::string(each.param.label); });

TEST(DcpHfTruncation, AtEveryByteOfEitherFileIsRefused) {
  const std::string whole[] = {test::safetensors_file(kFirstHeader, kFirstData),
                               test::safetensors_file(kSecondHeader, kSecondData)};
  for (const int victim : {0, 1}) {
    for (std::size_t size = 0; size < whole[victim].size(); ++size) {
      DcpHfFolder folder;
      folder.state->put("/d/" + kFirstName, test::as_span(victim == 0 ? whole[0].substr(0, size) : whole[0]));
      folder.state->put("/d/" + kSecondName, test::as_span(victim == 1 ? whole[1].substr(0, size) : whole[1]));
      const Error error = test::error_of([&] { folder.open(); });
      EXPECT_EQ(code_name(error.code()), "corruption") << size;
      EXPECT_EQ(error.kind(), FindingKind::kTruncated) << size;
      EXPECT_EQ(error.file(), victim == 0 ? kFirstName : kSecondName) << size;
    }
  }
}

}  // namespace
}  // namespace shard
