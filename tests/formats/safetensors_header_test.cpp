/// Every rule of the header: one damaged file each. The verdicts of safetensors 0.8.0 on the same files are the same,
/// except where a case says otherwise.
#include <fmt/format.h>
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

using test::length_bytes;
using test::safetensors_file;

const std::string kData = "1234";

std::string file_of(const std::string& header) { return safetensors_file(header, kData); }
/// A header whose only tensor has these fields, over four bytes of data.
std::string tensor_file(const std::string& fields) { return file_of("{\"a\":{" + fields + "}}"); }

std::unique_ptr<Reader> open_content(const std::string& content) {
  const auto state = std::make_shared<MemoryState>();
  state->put("/f.safetensors", test::as_span(content));
  static std::vector<std::unique_ptr<LocalDisk>> kept;  // Readers refer to theirs.
  kept.push_back(make_memory_disk(state));
  return kSafetensorsFormat.open({kept.back().get(), {"/f.safetensors"}}, {});
}

struct BadCase {
  const char* name;
  std::string content;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* words;
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

class BadHeader : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadHeader, IsRefusedByNameAndKind) {
  const BadCase& bad = GetParam();
  const Error error = test::error_of([&] { open_content(bad.content); });
  EXPECT_EQ(code_name(error.code()), code_name(bad.code)) << error.what();
  EXPECT_EQ(error.kind(), bad.kind) << error.what();
  EXPECT_THAT(error.what(), ::testing::HasSubstr(bad.words));
  EXPECT_EQ(error.file(), "f.safetensors");
}

const std::string kGood = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";

constexpr ErrorCode kBad = ErrorCode::kCorruption;
constexpr ErrorCode kNo = ErrorCode::kUnsupported;

const BadCase kFrame[] = {
    {"NoBytes", "", kBad, FindingKind::kTruncated, "the file has only 0 bytes"},
    {"SevenBytes", "1234567", kBad, FindingKind::kTruncated, "the file has only 7 bytes"},
    {"LengthZero", length_bytes(0), kBad, FindingKind::kBadHeader, "does not begin with '{'"},
    {"LengthPastTheCap", length_bytes(100'000'001) + "{}", kBad, FindingKind::kBadHeader, "length is 100000001 bytes"},
    {"LengthOfAllOnes", length_bytes(~std::uint64_t{0}) + "{}", kBad, FindingKind::kBadHeader,
     "length is 18446744073709551615 bytes"},
    {"LengthPastTheFile", length_bytes(1000) + "{}", kBad, FindingKind::kTruncated,
     "header ends at byte 1008, file at 10"},
    {"DataCut", safetensors_file("{\"a\":{" + kGood + "}}", "123"), kBad, FindingKind::kTruncated,
     "the header describes 4 bytes of data, but the file has 3"},
    {"BytesAfterTheData", safetensors_file("{\"a\":{" + kGood + "}}", "12345"), kBad, FindingKind::kGap,
     "the header describes 4 bytes of data, but the file has 5"},
    {"SpaceBefore", file_of(" {\"a\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader,
     "does not begin with '{'"},  // 0.8.0 reads it.
    {"Array", file_of("[]"), kBad, FindingKind::kBadHeader, "does not begin with '{'"},
};

const BadCase kJson[] = {
    {"NotUtf8", file_of("{\"\xff\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "UTF-8"},
    {"TextAfter", file_of("{\"a\":{" + kGood + "}}x"), kBad, FindingKind::kBadHeader, "more text after"},
    {"CommaAtTheEnd", file_of("{\"a\":{" + kGood + "},}"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"NoEnd", file_of("{\"a\":{" + kGood + "}"), kBad, FindingKind::kBadHeader, "expected ','"},
    {"StringWithoutEnd", file_of("{\"a"), kBad, FindingKind::kBadHeader, "does not end"},
    {"EscapeAtTheEnd", file_of("{\"a\\"), kBad, FindingKind::kBadHeader, "does not end"},
    {"NulInAString", file_of(std::string("{\"a\0\":{", 8) + kGood + "}}"), kBad, FindingKind::kBadHeader,
     "control character"},
    {"NewlineInAString", file_of("{\"a\n\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "control character"},
    {"UnknownEscape", file_of("{\"\\q\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "escape"},
    {"LoneHighSurrogate", file_of("{\"\\ud800\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "surrogate"},
    {"LoneLowSurrogate", file_of("{\"\\udc00\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "surrogate"},
    {"HighSurrogateTwice", file_of("{\"\\ud800\\ud800\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "surrogate"},
    {"CutHexEscape", file_of("{\"\\u12\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader, "escape"},
    {"SeventyLevels", tensor_file(kGood + ",\"x\":" + std::string(70, '[') + std::string(70, ']')), kBad,
     FindingKind::kBadHeader, "levels deep"},
    {"SkippedValueIsChecked", tensor_file(kGood + ",\"x\":01"), kBad, FindingKind::kBadHeader, "leading zeros"},
};

const BadCase kMetadata[] = {
    {"MetadataNumber", file_of("{\"__metadata__\":{\"a\":1},\"a\":{" + kGood + "}}"), kBad, FindingKind::kBadHeader,
     "expected '\"'"},
    {"MetadataTwice", file_of("{\"__metadata__\":{},\"__metadata__\":{},\"a\":{" + kGood + "}}"), kBad,
     FindingKind::kBadHeader, "twice"},
    {"MetadataKeyTwice", file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"},\"a\":{" + kGood + "}}"), kBad,
     FindingKind::kDuplicateName, "'k' twice"},  // 0.8.0 takes the last.
    {"ShardOfDcpHf",
     file_of(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[4]}}"},"a":{)" + kGood + "}}"), kNo,
     std::nullopt, "dcp-hf"},  // 0.8.0 takes the piece for the whole.
};

const BadCase kTensors[] = {
    {"TensorNull", file_of("{\"a\":null}"), kBad, FindingKind::kBadHeader, "expected '{'"},
    {"TensorAsList", file_of("{\"a\":[\"U8\",[4],[0,4]]}"), kBad, FindingKind::kBadHeader,
     "expected '{'"},  // 0.8.0 reads it.
    {"TensorTwice",
     file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
             "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}"),
     kBad, FindingKind::kDuplicateName, "'a' appears twice"},  // 0.8.0 drops one.
    {"TensorTwiceBySpelling",
     file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
             "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}"),
     kBad, FindingKind::kDuplicateName, "'a' appears twice"},
    {"NoDtype", tensor_file(R"("shape":[4],"data_offsets":[0,4])"), kBad, FindingKind::kBadHeader, "'a' lacks dtype"},
    {"NoShape", tensor_file(R"("dtype":"U8","data_offsets":[0,4])"), kBad, FindingKind::kBadHeader, "'a' lacks shape"},
    {"NoOffsets", tensor_file(R"("dtype":"U8","shape":[4])"), kBad, FindingKind::kBadHeader, "'a' lacks data_offsets"},
    {"FieldTwice", tensor_file(R"("dtype":"U8",)" + kGood), kBad, FindingKind::kBadHeader, "two fields dtype"},
    {"UnknownDtype", tensor_file(R"("dtype":"U9","shape":[4],"data_offsets":[0,4])"), kBad, FindingKind::kBadHeader,
     "'U9'"},
    {"LowerCaseDtype", tensor_file(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"), kBad, FindingKind::kBadHeader,
     "'u8'"},
    {"FractionInShape", tensor_file(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), kBad,
     FindingKind::kBadHeader, "whole"},
    {"ExponentInShape", tensor_file(R"("dtype":"U8","shape":[4e0],"data_offsets":[0,4])"), kBad,
     FindingKind::kBadHeader, "whole"},
    {"NegativeShape", tensor_file(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), kBad, FindingKind::kBadHeader,
     "negative"},
    {"LeadingZero", tensor_file(R"("dtype":"U8","shape":[04],"data_offsets":[0,4])"), kBad, FindingKind::kBadHeader,
     "zeros"},
    {"ShapePast63Bits", tensor_file(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), kBad,
     FindingKind::kBadHeader, "2^63"},
    {"OneOffset", tensor_file(R"("dtype":"U8","shape":[4],"data_offsets":[4])"), kBad, FindingKind::kBadHeader,
     "two numbers"},
    {"ThreeOffsets", tensor_file(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), kBad, FindingKind::kBadHeader,
     "two numbers"},
    {"OffsetsBackwards", tensor_file(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), kBad, FindingKind::kBadHeader,
     "run backwards"},
    {"ShapeAgainstOffsets", tensor_file(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])"), kBad,
     FindingKind::kShapeMismatch, "takes 5 bytes"},
    {"DtypeAgainstOffsets", tensor_file(R"("dtype":"F32","shape":[4],"data_offsets":[0,4])"), kBad,
     FindingKind::kShapeMismatch, "takes 16 bytes"},
    {"Hole",
     file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}"),
     kBad, FindingKind::kGap, "bytes [2, 3) of the data belong to no tensor"},
    {"HoleInFront", tensor_file(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), kBad, FindingKind::kGap,
     "bytes [0, 1)"},
    {"Overlap",
     file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}"),
     kBad, FindingKind::kOverlap, "byte 2"},
    {"EmptyTensorInsideAnother",
     file_of("{\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
             "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"),
     kBad, FindingKind::kOverlap, "byte 2"},
    {"Float4OddElements", tensor_file(R"("dtype":"F4","shape":[7],"data_offsets":[0,4])"), kBad,
     FindingKind::kShapeMismatch, "end inside a byte"},
    {"Float4OddLastDimension", tensor_file(R"("dtype":"F4","shape":[8,1],"data_offsets":[0,4])"), kNo, std::nullopt,
     "odd last dimension"},  // 0.8.0 reads the header; safetensors.torch cannot load it.
};

const auto kName = [](const ::testing::TestParamInfo<BadCase>& tested) { return tested.param.name; };
INSTANTIATE_TEST_SUITE_P(Frame, BadHeader, ::testing::ValuesIn(kFrame), kName);
INSTANTIATE_TEST_SUITE_P(Json, BadHeader, ::testing::ValuesIn(kJson), kName);
INSTANTIATE_TEST_SUITE_P(Metadata, BadHeader, ::testing::ValuesIn(kMetadata), kName);
INSTANTIATE_TEST_SUITE_P(Tensors, BadHeader, ::testing::ValuesIn(kTensors), kName);

TEST(Header, ShapesThatOverflowAreRefused) {
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807,2]", "[1099511627776,1099511627776,0]"}) {
    const std::string fields = std::string(R"("dtype":"U8","data_offsets":[0,0],"shape":)") + shape;
    test::expect_error(ErrorCode::kCorruption, "", [&] { open_content(safetensors_file("{\"a\":{" + fields + "}}")); });
  }
}

TEST(Header, AZeroBeforeLargeDimensionsCounts) {
  const auto shape = R"({"a":{"dtype":"U8","data_offsets":[0,0],"shape":[0,1099511627776,1099511627776]}})";
  EXPECT_EQ(open_content(safetensors_file(shape))->catalog().tensors.size(), 1U);
}

TEST(Header, TensorsAfterOneAnotherAreOnOneLevel) {
  std::string header;
  for (int i = 0; i < 200; ++i) {
    header += (i == 0 ? "{\"t" : ",\"t") + std::to_string(i) + R"(":{"dtype":"U8","data_offsets":[0,0],"shape":[0]})";
  }
  EXPECT_EQ(open_content(safetensors_file(header + "}"))->catalog().tensors.size(), 200U);
}

TEST(Header, ANameTwiceIsNamedThoughTheBytesAreTheSame) {
  const std::string entry = "\"a\":{" + kGood + "}";
  const Error error = test::error_of([&] { open_content(safetensors_file("{" + entry + "," + entry + "}", "1234")); });
  EXPECT_EQ(error.kind(), FindingKind::kDuplicateName);
  EXPECT_EQ(error.tensor(), "a");
}

TEST(Header, Float6ThatEndsInsideAByteIsRefused) {
  test::expect_error(ErrorCode::kCorruption, "", [] {
    open_content(safetensors_file(R"({"a":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,3]}})", "123"));
  });
}

TEST(Header, MoreThan64DimensionsAreNotSupported) {
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  test::expect_error(ErrorCode::kUnsupported, "65 dimensions", [&] {
    open_content(safetensors_file(R"({"a":{"dtype":"U8","data_offsets":[0,1],"shape":[)" + shape + "]}}", "1"));
  });
}

TEST(Header, ATruncatedFileSaysWhatIsMissing) {
  const Error error = test::error_of([] { open_content(safetensors_file("{\"a\":{" + kGood + "}}", "1")); });
  EXPECT_EQ(error.expected(), "4");
  EXPECT_EQ(error.found(), "1");
  EXPECT_EQ(error.why(), "the file is truncated (3 bytes are missing)");
  EXPECT_EQ(error.hint(), "fetch it again");
}

TEST(Header, CutAnywhereItIsCorruption) {
  const std::string whole = file_of("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{" + kGood + "}}");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    test::expect_error(ErrorCode::kCorruption, "", [&] { open_content(whole.substr(0, bytes)); });
  }
}

// --- Accepted headers ---

TEST(Header, WithoutTensorsIsAccepted) { EXPECT_TRUE(open_content(safetensors_file("{}"))->catalog().tensors.empty()); }

TEST(Header, WhiteSpaceAfterTheJsonIsAccepted) {
  EXPECT_EQ(open_content(file_of("{\"a\":{" + kGood + "}}  \n\t\r"))->catalog().tensors.size(), 1U);
}

TEST(Header, UnknownFieldsAreSkipped) {
  const auto reader = open_content(tensor_file(R"("x":{"y":[1,-2.5e3,{"z":null}],"w":true},)" + kGood));
  EXPECT_EQ(reader->catalog().tensors.size(), 1U);
}

TEST(Header, NullMetadataIsAccepted) {
  EXPECT_TRUE(open_content(file_of("{\"__metadata__\":null,\"a\":{" + kGood + "}}"))->catalog().metadata.empty());
}

TEST(Header, TensorsMayBeInAnyOrder) {
  const auto reader = open_content(file_of(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                                           R"("z":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},)"
                                           R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"));
  const Catalog& catalog = reader->catalog();
  ASSERT_EQ(catalog.tensors.size(), 3U);
  EXPECT_EQ(catalog.tensors[1].name, "b");
  EXPECT_EQ(catalog.storages[catalog.stored[catalog.chunks_of(catalog.tensors[1])[0].stored].storage].offset,
            static_cast<std::int64_t>(catalog.files[0].bytes) - 2);
}

TEST(Header, NamesMayHaveEscapesAndAnyCharacter) {
  const auto reader = open_content(file_of(R"({"\u00e9\ud83d\ude00\n\u0000":{)" + kGood + "}}"));
  using namespace std::string_view_literals;
  EXPECT_EQ(reader->catalog().tensors[0].name, "\xc3\xa9\xf0\x9f\x98\x80\n\0"sv);
}

/// The parser looks at eight bytes at once.
TEST(Header, StringsOfAnyLengthEndAtTheirQuote) {
  for (std::size_t before = 0; before < 20; ++before) {
    for (std::size_t after = 0; after < 20; ++after) {
      const std::string front(before, 'a'), end = std::string(after, '~') + "\xc3\xa9";
      const auto open_named = [&](const std::string& name) {
        return open_content(file_of("{\"" + name + "\":{" + kGood + "}}"));
      };
      EXPECT_EQ(open_named(front + end)->catalog().tensors[0].name, front + end);
      EXPECT_EQ(open_named(front + "\\\"" + end)->catalog().tensors[0].name, front + '"' + end);
      EXPECT_THROW(open_named(front + '\x1f' + end), Error);
    }
  }
}

TEST(Header, ALongTextIsReadInBlocks) {
  constexpr int kCount = 60'000;
  std::string header = "{";
  for (int i = 0; i < kCount; ++i) {
    header += fmt::format(R"({}"layers.{}.a_long_name_of_a_weight":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                          i == 0 ? "" : ",", 100'000 + i);
  }
  ASSERT_GT(header.size(), std::size_t{5} << 20);
  const auto reader = open_content(safetensors_file(header + "}"));
  ASSERT_EQ(reader->catalog().tensors.size(), kCount);
  EXPECT_EQ(reader->catalog().tensors.front().name, "layers.100000.a_long_name_of_a_weight");
  EXPECT_EQ(reader->catalog().tensors.back().name, "layers.159999.a_long_name_of_a_weight");
}

TEST(Header, TheEmptyNameIsAccepted) {
  EXPECT_EQ(open_content(file_of("{\"\":{" + kGood + "}}"))->catalog().tensors[0].name, "");
}

TEST(Header, EscapesInFieldNamesMeanTheSame) {
  const auto reader = open_content(tensor_file(R"("\u0064type":"\u00558","shape":[4],"data_offsets":[0,4])"));
  EXPECT_EQ(reader->catalog().tensors[0].dtype, DType::kUint8);
}

struct DTypeCase {
  const char* name;
  const char* shape;
  std::int64_t bytes;
  DType dtype;
  std::vector<std::int64_t> torch_shape;
};

TEST(Header, EveryDtypeIsReadInTorchsShape) {
  const DTypeCase cases[] = {
      {"BOOL", "[2,2]", 4, DType::kBool, {2, 2}},
      {"F4", "[2,4]", 4, DType::kFloat4E2m1fnX2, {2, 2}},
      {"F6_E2M3", "[4]", 3, DType::kFloat6E2m3fn, {4}},
      {"F6_E3M2", "[2,4]", 6, DType::kFloat6E3m2fn, {2, 4}},
      {"U8", "[2]", 2, DType::kUint8, {2}},
      {"I8", "[2]", 2, DType::kInt8, {2}},
      {"F8_E5M2", "[2]", 2, DType::kFloat8E5m2, {2}},
      {"F8_E4M3", "[2]", 2, DType::kFloat8E4m3fn, {2}},
      {"F8_E8M0", "[2]", 2, DType::kFloat8E8m0fnu, {2}},
      {"F8_E4M3FNUZ", "[2]", 2, DType::kFloat8E4m3fnuz, {2}},
      {"F8_E5M2FNUZ", "[2]", 2, DType::kFloat8E5m2fnuz, {2}},
      {"I16", "[2]", 4, DType::kInt16, {2}},
      {"U16", "[2]", 4, DType::kUint16, {2}},
      {"F16", "[2]", 4, DType::kFloat16, {2}},
      {"BF16", "[2]", 4, DType::kBfloat16, {2}},
      {"I32", "[2]", 8, DType::kInt32, {2}},
      {"U32", "[2]", 8, DType::kUint32, {2}},
      {"F32", "[]", 4, DType::kFloat32, {}},
      {"C64", "[2]", 16, DType::kComplex64, {2}},
      {"F64", "[2]", 16, DType::kFloat64, {2}},
      {"I64", "[0,3]", 0, DType::kInt64, {0, 3}},
      {"U64", "[2]", 16, DType::kUint64, {2}},
  };
  for (const DTypeCase& tested : cases) {
    const std::string bytes = std::to_string(tested.bytes);
    const auto reader =
        open_content(safetensors_file(std::string(R"({"a":{"dtype":")") + tested.name + R"(","shape":)" + tested.shape +
                                          R"(,"data_offsets":[0,)" + bytes + "]}}",
                                      std::string(static_cast<std::size_t>(tested.bytes), 'x')));
    const Tensor& tensor = reader->catalog().tensors[0];
    EXPECT_EQ(tensor.dtype, tested.dtype) << tested.name;
    EXPECT_THAT(std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end()), tested.torch_shape) << tested.name;
  }
}

}  // namespace
}  // namespace shard
