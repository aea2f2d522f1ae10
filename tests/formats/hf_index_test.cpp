// Hugging Face's index, of safetensors and of torch: each possible problem once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;
using ::testing::ValuesIn;

struct Kind {
  const char* format;
  std::string index, first, second;  // File names. "a" is in the first, "b" in the second.
};
const Kind kKinds[] = {
    {"safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
     "model-00002-of-00002.safetensors"},
    {"torch", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"},
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.format; }

/// FIRST and SECOND in a text of a table.
std::string named(std::string text, const Kind& kind) {
  for (const auto& [word, name] : {std::pair("FIRST", kind.first), std::pair("SECOND", kind.second)}) {
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos;)
      text.replace(at, std::strlen(word), name);
  }
  return text;
}

/// A checkpoint of two files in memory whose index a test replaces.
struct Folder {
  explicit Folder(const Kind& which) : kind(which) {
    fs->make_folder("/d");
    std::mt19937_64 random(1);
    content = {{"a", testing::random_tensor(random, DType::kUint8, {4})},
               {"b", testing::random_tensor(random, DType::kUint8, {4})}};
    testing::write_checkpoint(*fs, *testing::content_reader(content),
                              {.format = kind.format, .destination = "/d/x", .layout = ShardsLayout{2}});
  }
  void put_index(const std::string& text) { state->put("/d/x/" + kind.index, test::as_span(named(text, kind))); }
  std::unique_ptr<Reader> open() const { return format_named(kind.format).open({fs.get(), {"/d/x"}}, {}); }

  Kind kind;
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  testing::Content content;
};

struct Bad {
  const char* label;
  std::string index;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* words;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.label; }

constexpr ErrorCode kBad = ErrorCode::kCorruption;

std::string map_of(const std::string& entries) {
  return R"({"metadata": {"total_size": 8}, "weight_map": {)" + entries + "}}";
}

const Bad kBadOnes[] = {
    {"Empty", "", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"AList", "[]", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"Null", "null", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"Cut", R"({"weight_map": {"a": "FIRST")", kBad, FindingKind::kBadHeader, "bad JSON"},
    {"MoreText", map_of(R"("a": "FIRST", "b": "SECOND")") + "{}", kBad, FindingKind::kBadHeader, "more text"},
    {"NotUtf8", map_of("\"a\xff\": \"FIRST\""), kBad, FindingKind::kBadHeader, "UTF-8"},
    {"ByteOrderMark", "\xef\xbb\xbf" + map_of(R"("a": "FIRST")"), kBad, FindingKind::kBadHeader, "expected '{'"},
    {"NoWeightMap", R"({"metadata": {"total_size": 8}})", kBad, FindingKind::kBadHeader, "no weight_map"},
    {"WeightMapTwice", R"({"weight_map": {"a": "FIRST"}, "weight_map": {"b": "SECOND"}})", kBad,
     FindingKind::kBadHeader, "twice"},
    {"WeightMapIsAList", R"({"weight_map": ["FIRST"]})", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"WeightMapIsNull", R"({"weight_map": null})", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"WeightMapIsAText", R"({"weight_map": "FIRST"})", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"WeightMapIsANumber", R"({"weight_map": 1})", kBad, FindingKind::kBadHeader, "expected '{'"},
    {"FileIsANumber", map_of(R"("a": 1)"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"FileIsNull", map_of(R"("a": null)"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"FileIsAList", map_of(R"("a": ["FIRST"])"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"FileIsAnObject", map_of(R"("a": {"file": "FIRST"})"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"KeyIsANumber", map_of(R"(1: "FIRST")"), kBad, FindingKind::kBadHeader, "expected '\"'"},
    {"NameTwice", map_of(R"("a": "FIRST", "b": "SECOND", "a": "SECOND")"), kBad, FindingKind::kDuplicateName,
     "'a' twice"},
    {"NameTwiceBySpelling", map_of(R"("a": "FIRST", "b": "SECOND", "\u0061": "FIRST")"), kBad,
     FindingKind::kDuplicateName, "'a' twice"},
    {"AbsolutePath", map_of(R"("a": "/etc/passwd")"), kBad, std::nullopt, "in folders below it"},
    {"PathUp", map_of(R"("a": "../FIRST")"), kBad, std::nullopt, "in folders below it"},
    {"PathDown", map_of(R"("a": "FIRST", "b": "SECOND", "c": "sub/absent")"), ErrorCode::kNotFound,
     FindingKind::kMissingFile, "sub/absent"},
    {"PathDownAndUp", map_of(R"("a": "sub/../../FIRST")"), kBad, std::nullopt, "in folders below it"},
    {"EmptyPart", map_of(R"("a": "sub//FIRST")"), kBad, std::nullopt, "in folders below it"},
    {"EscapedSlash", map_of(R"("a": "..\u002fFIRST")"), kBad, std::nullopt, "in folders below it"},
    {"Backslash", map_of(R"("a": "..\\FIRST")"), kBad, std::nullopt, "in folders below it"},
    {"TheFolderItself", map_of(R"("a": ".")"), kBad, std::nullopt, "in folders below it"},
    {"TheFolderAbove", map_of(R"("a": "..")"), kBad, std::nullopt, "in folders below it"},
    {"NoFileName", map_of(R"("a": "")"), kBad, std::nullopt, "in folders below it"},
    {"NulInTheFileName", map_of(R"("a": "FIRST\u0000")"), kBad, std::nullopt, "in folders below it"},
    {"FileAbsent", map_of(R"("a": "FIRST", "b": "SECOND", "c": "absent")"), ErrorCode::kNotFound,
     FindingKind::kMissingFile, "absent"},
    {"TensorAbsent", map_of(R"("a": "FIRST", "b": "SECOND", "c": "SECOND")"), kBad, FindingKind::kIndexMismatch, "'c'"},
    {"TensorInTheOtherFile", map_of(R"("a": "SECOND", "b": "FIRST")"), kBad, FindingKind::kIndexMismatch, "'a'"},
    {"NamesNoFile", map_of(""), kBad, FindingKind::kIndexMismatch, "names no file"},
    {"NamesOnePartOfTwo", map_of(R"("a": "FIRST")"), kBad, FindingKind::kIndexMismatch, "all parts"},
    {"DeepMetadata", R"({"metadata": )" + std::string(200'000, '['), kBad, FindingKind::kBadHeader, "levels deep"},
    {"DeepObjects",
     R"({"x": )" +
         [] {
           std::string deep;
           for (int i = 0; i < 100'000; ++i) deep += R"({"x":)";
           return deep;
         }(),
     kBad, FindingKind::kBadHeader, "levels deep"},
    {"ALongString", R"({"metadata": ")" + std::string(8 << 20, 'x'), kBad, FindingKind::kBadHeader, "does not end"},
    {"ManyStrangers", map_of([] {
       std::string entries = R"("a": "FIRST")";
       for (int i = 0; i < 20'000; ++i) entries += ", \"x" + std::to_string(i) + R"(": "SECOND")";
       return entries;
     }()),
     kBad, FindingKind::kIndexMismatch, "'x0'"},
};

class HubIndex : public ::testing::TestWithParam<std::tuple<Kind, Bad>> {};
TEST_P(HubIndex, IsRefused) {
  const auto& [kind, bad] = GetParam();
  Folder folder(kind);
  folder.put_index(bad.index);
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(code_name(error.code()), code_name(bad.code)) << error.what();
  EXPECT_EQ(error.kind(), bad.kind) << error.what();
  EXPECT_THAT(std::string(error.what()) + error.why() + error.file(), HasSubstr(bad.words));
  EXPECT_NE(error.file(), "") << error.what();
}
INSTANTIATE_TEST_SUITE_P(Damage, HubIndex, Combine(ValuesIn(kKinds), ValuesIn(kBadOnes)), [](const auto& each) {
  return std::string(std::get<0>(each.param).format) + std::get<1>(each.param).label;
});

/// Fields that differ between writers and are ignored.
struct Good {
  const char* label;
  const char* index;
};
const Good kGoodOnes[] = {
    {"NoMetadata", R"({"weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"MetadataIsNull", R"({"metadata": null, "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"MetadataIsAList", R"({"metadata": [1], "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"WrongTotal", R"({"metadata": {"total_size": 123456789}, "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"NegativeTotal", R"({"metadata": {"total_size": -1}, "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"TotalIsAText", R"({"metadata": {"total_size": "8"}, "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"HugeTotal", R"({"metadata": {"total_size": 1e400}, "weight_map": {"a": "FIRST", "b": "SECOND"}})"},
    {"UnknownKeys", R"({"x": [{"y": 1.5}], "weight_map": {"a": "FIRST", "b": "SECOND"}, "z": true})"},
    {"EscapedNames", R"({"weight_map": {"\u0061": "FIRST", "b": "\u0053ECOND"}})"},
};

class HubIndexRead : public ::testing::TestWithParam<std::tuple<Kind, Good>> {};
TEST_P(HubIndexRead, ByItsWeightMapAlone) {
  const auto& [kind, good] = GetParam();
  Folder folder(kind);
  std::string text = good.index;
  if (const std::size_t at = text.find("\\u0053ECOND"); at != std::string::npos) {
    text.replace(at, 11, "\\u00" + std::string(kind.second[0] == 'm' ? "6d" : "70") + kind.second.substr(1));
  }
  folder.put_index(text);
  EXPECT_EQ(testing::read_content(*folder.open()), folder.content);
}
INSTANTIATE_TEST_SUITE_P(Tolerance, HubIndexRead, Combine(ValuesIn(kKinds), ValuesIn(kGoodOnes)), [](const auto& each) {
  return std::string(std::get<0>(each.param).format) + std::get<1>(each.param).label;
});

/// The same checkpoint on the disk, for links.
class HubIndexOnDisk : public ::testing::TestWithParam<Kind> {
 protected:
  HubIndexOnDisk() {
    const Folder memory(GetParam());
    for (const std::string& name : memory.fs->list("/d/x")) {
      disk.write("x/" + name, test::as_text(memory.state->content("/d/x/" + name)));
    }
    std::filesystem::remove(disk / "x/" + GetParam().second);
  }
  std::string second() const { return disk / "x/" + GetParam().second; }
  Error error() const {
    return test::error_of([&] { format_named(GetParam().format).open({&posix_disk(), {disk / "x"}}, {}); });
  }

  test::TempFolder disk;
};

TEST_P(HubIndexOnDisk, ALinkToAFileElsewhereIsReadAsCachesAreMadeOfThem) {
  const Folder memory(GetParam());
  disk.write("blobs/b", test::as_text(memory.state->content("/d/x/" + GetParam().second)));
  std::filesystem::create_symlink("../blobs/b", second());
  const auto reader = format_named(GetParam().format).open({&posix_disk(), {disk / "x"}}, {});
  EXPECT_EQ(testing::read_content(*reader), memory.content);
}

TEST_P(HubIndexOnDisk, ALinkInALoopIsNotFound) {
  std::filesystem::create_symlink(GetParam().second, second());
  EXPECT_EQ(code_name(error().code()), "not_found");
}

TEST_P(HubIndexOnDisk, ALinkToNowhereIsNotFound) {
  std::filesystem::create_symlink("nowhere", second());
  EXPECT_EQ(code_name(error().code()), "not_found");
}

TEST_P(HubIndexOnDisk, AFolderOrADeviceInPlaceOfAFileIsRefused) {
  std::filesystem::create_symlink("/dev/zero", second());
  EXPECT_EQ(code_name(error().code()), "not_found");
  std::filesystem::remove(second());
  std::filesystem::create_directory(second());
  EXPECT_EQ(code_name(error().code()), "not_found");
}

TEST_P(HubIndexOnDisk, AnIndexTooLargeIsRefusedBeforeItIsRead) {
  std::filesystem::resize_file(disk / "x/" + GetParam().index, std::uintmax_t{1} << 40);
  EXPECT_EQ(code_name(error().code()), "corruption");
}

INSTANTIATE_TEST_SUITE_P(Links, HubIndexOnDisk, ValuesIn(kKinds),
                         [](const auto& each) { return std::string(each.param.format); });

}  // namespace
}  // namespace shard
