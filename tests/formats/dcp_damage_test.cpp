// Each field of .metadata and of the items, wrong once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/formats/dcp_golden.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::GoldenDcp;
using ::testing::HasSubstr;

struct Damage {
  const char* name;
  std::function<void(GoldenDcp&)> make;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* words;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

auto respelled(const char* what, const char* with) {
  return [=](GoldenDcp& golden) { golden.respell(what, with); };
}
auto replaced(std::string what, std::string with, int nth = 0) {
  return [=](GoldenDcp& golden) { golden.replace(".metadata", what, with, nth); };
}
auto in_items(std::string what, std::string with, int nth = 0) {
  return [=](GoldenDcp& golden) { golden.replace("__0_0.distcp", what, with, nth); };
}

using std::string_literals::operator""s;
constexpr ErrorCode kBad = ErrorCode::kCorruption, kNo = ErrorCode::kUnsupported;

/// Replaces the value before `next`: POP, then the new value.
auto value_before(std::string next, std::string value, int nth = 0) { return replaced(next, "0" + value + next, nth); }
auto without(const char* file) {
  return [=](GoldenDcp& golden) { golden.files.erase(file); };
}

std::string key_of(const char* text) {
  return std::string("\x8c") + static_cast<char>(std::strlen(text)) + text + "\x94";
}
std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
const std::string kPlace = "hHhIhJM\xed\x04hKM)\x06ub"s;  // relative_path, offset 1261, length 1577 of w's item.
auto placed(std::string offset, std::string length) {
  return replaced(kPlace, "hHhIhJ" + offset + "hK" + length + "ub");
}
const std::string kMinusOne = "J\xff\xff\xff\xff"s, kLargest = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s,
                  kPast64 = "\x8a\x09\0\0\0\0\0\0\0\0\x01"s;
auto with_transforms(std::string value) {
  return replaced("\x8c\x06length\x94M\xed\x04", "\x8c\x06length\x94M\xed\x04\x8c\x15transform_descriptors" + value);
}

const Damage kDamages[] = {
    // Keys that are missing.
    {"NoStateDict", respelled("state_dict_metadata", "x"), kBad, FindingKind::kBadPickle,
     "pickled Metadata: it has no attribute 'state_dict_metadata'"},
    {"NoStorageData", respelled("storage_data", "x"), kBad, FindingKind::kBadPickle,
     "pickled Metadata: it has no attribute 'storage_data'"},
    {"NoProperties", respelled("properties", "x"), kBad, FindingKind::kBadPickle,
     "tensor 'w': cannot read the pickled TensorStorageMetadata: it has no attribute 'properties'"},
    {"NoSize", respelled("size", "x"), kBad, FindingKind::kBadPickle, "it has no attribute 'size'"},
    {"NoChunks", respelled("chunks", "x"), kBad, FindingKind::kBadPickle, "it has no attribute 'chunks'"},
    {"NoChunkOffsets", respelled("offsets", "x"), kBad, FindingKind::kBadPickle, "it has no attribute 'offsets'"},
    {"NoChunkSizes", respelled("sizes", "x"), kBad, FindingKind::kBadPickle, "it has no attribute 'sizes'"},
    {"NoName", respelled("fqn", "x"), kBad, FindingKind::kBadPickle,
     "pickled MetadataIndex: it has no attribute 'fqn'"},
    {"NoFile", respelled("relative_path", "x"), kBad, FindingKind::kBadPickle,
     "pickled _StorageInfo: it has no attribute 'relative_path'"},
    {"NoOffset", respelled("offset", "x"), kBad, FindingKind::kBadPickle,
     "pickled _StorageInfo: it has no attribute 'offset'"},
    {"NoState", replaced("ub.", "u0."), kBad, FindingKind::kBadPickle, "it has no attributes"},

    // Classes.
    {"OtherRoot", respelled("Metadata", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "pickled Metadata: found a value of type"},
    {"OtherTensorClass", respelled("TensorStorageMetadata", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "tensor 'w': cannot read the pickled TensorStorageMetadata"},
    {"OtherBytesClass", respelled("BytesStorageMetadata", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "tensor 'step': cannot read the pickled TensorStorageMetadata"},
    {"OtherChunkClass", respelled("ChunkStorageMetadata", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "pickled ChunkStorageMetadata: found a value of type"},
    {"OtherPropertiesClass", respelled("TensorProperties", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "pickled TensorProperties: found a value of type"},
    {"OtherIndexClass", respelled("MetadataIndex", "StorageMeta"), kBad, FindingKind::kBadPickle,
     "pickled MetadataIndex: found a value of type"},
    {"OtherPlaceClass", respelled("_StorageInfo", "_StoragePrefix"), kBad, FindingKind::kBadPickle,
     "pickled _StorageInfo: found a value of type"},
    {"ForbiddenClass", respelled("_StorageInfo", "_Other"), kBad, FindingKind::kForbiddenGlobal, "filesystem._Other"},
    {"ForbiddenCall", respelled("PosixPath", "system"), kBad, FindingKind::kForbiddenGlobal, "pathlib.system"},
    {"ByteCheckpoint", respelled("torch.distributed.checkpoint.metadata", "bytecheckpoint.checkpointer.meta_type"), kNo,
     std::nullopt, "ByteCheckpoint"},
    {"MegatronCore",
     respelled("torch.distributed.checkpoint.metadata", "megatron.core.dist_checkpointing.strategies.torch"), kNo,
     std::nullopt, "Megatron-Core"},

    // Values of different types, one for each field.
    {"StateDictIsNone", value_before(key_of("planner_data"), "N"), kBad, FindingKind::kBadPickle,
     "pickled state_dict_metadata: it is not a dict"},
    {"NameIsNumber",
     replaced("\x8c\x01w\x94",
              "\x8c\x01w\x94"
              "0K\x01"),
     kBad, FindingKind::kBadPickle, "name in state_dict_metadata: it is not a string"},
    {"PropertiesAreNone", value_before(key_of("size"), "N"), kBad, FindingKind::kBadPickle,
     "pickled TensorProperties: found a value of type"},
    {"FourProperties",
     replaced("\x89t\x94"
              "b",
              "t\x94"
              "b"),
     kBad, FindingKind::kBadPickle, "pickled TensorProperties: it has no attribute 'dtype'"},
    {"NoDtype", respelled("float32", "Tensor"), kNo, std::nullopt, "dtype torch.Tensor"},
    {"DtypeIsText",
     value_before(key_of("torch.serialization"),
                  "\x8c\x07"
                  "float32"),
     kBad, FindingKind::kBadPickle, "its dtype is not one of torch's"},
    {"LayoutIsNone",
     replaced("R\x94\x89h\0"s,
              "R\x94"
              "0N\x89h\0"s),
     kBad, FindingKind::kBadPickle, "its layout is not one of torch's"},
    {"SparseLayout", respelled("torch.strided", "torch.sparse_coo"), kNo, std::nullopt, "torch.sparse_coo"},
    {"GradientsAreANumber", replaced("\x89h\0"s, "K\x05h\0"s), kBad, FindingKind::kBadPickle,
     "requires_grad: it is not a bool"},
    {"SizeIsNone", value_before(key_of("chunks"), "N"), kBad, FindingKind::kBadPickle,
     "pickled size: it is not a list or a tuple"},
    {"ChunksAreNone", replaced("ubaub", "uba0Nub"), kBad, FindingKind::kBadPickle,
     "list of chunks: it is not a list or a tuple"},
    {"AChunkIsNone", replaced("ubaub", "ub0Naub"), kBad, FindingKind::kBadPickle,
     "pickled ChunkStorageMetadata: found a value of type"},
    {"OffsetsAreNone", value_before(key_of("sizes"), "N"), kBad, FindingKind::kBadPickle,
     "offsets of a chunk: it is not a list or a tuple"},
    {"SizesAreNone",
     replaced("R\x94ubaub",
              "R\x94"
              "0Nubaub"),
     kBad, FindingKind::kBadPickle, "sizes of a chunk: it is not a list or a tuple"},
    {"PathIsNone",
     replaced("h\x07h\x07\x85",
              "h\x07h\x07\x85"
              "0N"),
     kBad, FindingKind::kBadPickle, "does not lead from names to tuples"},
    {"PathIsEmpty", replaced("h\x07h\x07\x85", "h\x07)"), kBad, FindingKind::kBadPickle, "'w' has an empty path"},
    {"PathHoldsNone", replaced("h\x07h\x07\x85", "h\x07N\x85"), kBad, FindingKind::kBadPickle, "neither key nor index"},
    {"PathOfANumber", replaced("h\x07h\x07\x85", "K\x01h\x07\x85"), kBad, FindingKind::kBadPickle,
     "does not lead from names to tuples"},
    {"PlacesAreNone", value_before(key_of("storage_meta"), "N"), kBad, FindingKind::kBadPickle,
     "pickled storage_data: it is not a dict"},
    {"IndexIsNone", replaced("Nub\x8c'torch", "Nub0N\x8c'torch"), kBad, FindingKind::kBadPickle,
     "pickled MetadataIndex: found a value of type"},
    {"NameOfAPlaceIsNone", replaced("hAh\x07hB", "hANhB"), kBad, FindingKind::kBadPickle,
     "fqn of a MetadataIndex: it is not a string"},
    {"OffsetOfAPlaceIsText",
     replaced("R\x94ubhE",
              "R\x94"
              "0h\x07ubhE"),
     kBad, FindingKind::kBadPickle, "offset of a MetadataIndex: it is not a list or a tuple"},
    {"APlaceIsNone", replaced("M)\x06ubu", "M)\x06ub0Nu"), kBad, FindingKind::kBadPickle,
     "pickled _StorageInfo: found a value of type"},
    {"FileIsNone", replaced("hHhIhJM", "hHNhJM"), kBad, FindingKind::kBadPickle,
     "relative_path of a _StorageInfo: it is not a string"},
    {"OffsetIsNone", placed("N", "M)\x06"), kBad, FindingKind::kBadPickle,
     "offset of a _StorageInfo: it is not a natural number"},
    {"LengthIsNone", placed("M\xed\x04", "N"), kBad, FindingKind::kBadPickle,
     "length of a _StorageInfo: it is not a natural number"},
    {"TransformsAreANumber", with_transforms("K\x01"), kBad, FindingKind::kBadPickle,
     "transform_descriptors: it is not a list or a tuple"},

    // Numbers. SIZE (3, 4) is spelled K 3 K 4 TUPLE2, first as the tensor's size, then as the chunk's sizes.
    {"Gap", replaced("K\x03K\x04\x86", "K\x04K\x04\x86"), kBad, FindingKind::kGap, "w"},
    {"ChunkOutside", replaced("K\x03K\x04\x86", "K\x02K\x04\x86"), kBad, FindingKind::kOutOfBounds, "w"},
    {"ChunkBegunOutside", replaced("K\0K\0\x86"s, "K\0K\x01\x86"s), kBad, FindingKind::kBadPickle,
     "no chunk starts there"},
    {"OtherDimensions", replaced("K\x03K\x04\x86", "K\x03\x85"), kBad, FindingKind::kShapeMismatch,
     "but one of its chunks has a different number"},
    {"SizeIsNegative", replaced("K\x03K\x04\x86", "K\x03" + kMinusOne + "\x86"), kBad, FindingKind::kBadPickle,
     "it is not a natural number"},
    {"SizeIsText", replaced("K\x03K\x04\x86", "K\x03\x8c\x01x\x86"), kBad, FindingKind::kBadPickle,
     "it is not a natural number"},
    {"SizePast64Bits", replaced("K\x03K\x04\x86", "K\x03" + kPast64 + "\x86"), kBad, FindingKind::kBadPickle,
     "it is not a natural number"},
    {"SizeOverflows", replaced("K\x03K\x04\x86", "K\x03" + kLargest + "\x86", 1), kBad, FindingKind::kBadPickle,
     "63 bits"},
    {"OffsetsOverflow", replaced("K\0K\0\x86"s, "K\0"s + kLargest + "\x86"), kBad, FindingKind::kBadPickle,
     "no chunk starts there"},
    {"TooManyDimensions", replaced("K\x03K\x04\x86\x94\x85", "(" + repeated("K\x01", 65) + "t\x94\x85"), kBad,
     FindingKind::kBadPickle, "65 dimensions"},
    {"PlaceOfNoChunk", replaced("K\0K\0\x86"s, "K\x01K\0\x86"s, 1), kBad, FindingKind::kBadPickle,
     "no chunk starts there"},
    {"ChunkWithoutPlace", replaced("K\0K\0\x86"s, "K\x01K\0\x86"s), kBad, FindingKind::kBadPickle,
     "no chunk starts there"},
    {"PlaceOfNoName", replaced("hAh\x07hB", "hAh\x01hB"), kBad, FindingKind::kBadPickle,
     "'Metadata', but there is no tensor or object of that name"},
    {"TwoPlaces", replaced("hAh\x07hB", "hAh3hB"), kBad, FindingKind::kBadPickle,
     "two locations for one chunk of 'step'"},
    {"OffsetIsNegative", placed(kMinusOne, "M)\x06"), kBad, FindingKind::kBadPickle,
     "offset of a _StorageInfo: it is not a natural number"},
    {"OffsetPastTheEnd", placed("M)\x0f", "M)\x06"), kBad, FindingKind::kTruncated, "has 2838 bytes"},
    {"OffsetOverflows", placed(kLargest, "M)\x06"), kBad, FindingKind::kTruncated, "is at 9223372036854775807"},
    {"OffsetPast64Bits", placed(kPast64, "M)\x06"), kBad, FindingKind::kBadPickle,
     "offset of a _StorageInfo: it is not a natural number"},
    {"OffsetOfAnotherItem", placed("K\0"s, "M)\x06"), kBad, FindingKind::kOverlap, "overlap"},
    {"OffsetOneTooSmall", placed("M\xec\x04", "M)\x06"), kBad, FindingKind::kOverlap, "overlap"},
    {"OffsetOneTooLarge", placed("M\xee\x04", "M(\x06"), kBad, FindingKind::kBadHeader, "not a torch.save zip"},
    {"LengthIsNegative", placed("M\xed\x04", kMinusOne), kBad, FindingKind::kBadPickle,
     "length of a _StorageInfo: it is not a natural number"},
    {"LengthOverflows", placed("M\xed\x04", kLargest), kBad, FindingKind::kTruncated,
     "an item of 9223372036854775807 bytes"},
    {"LengthIsZero", placed("M\xed\x04", "K\0"s), kBad, FindingKind::kBadHeader, "not a torch.save zip"},
    {"LengthOneTooSmall", placed("M\xed\x04", "M(\x06"), kBad, FindingKind::kTruncated, "end record"},
    {"LengthOneTooLarge", placed("M\xed\x04", "M*\x06"), kBad, FindingKind::kTruncated, "has 2838 bytes"},
    {"UnknownTransform", with_transforms("](\x8c\x0dstream.lz4/1xe"), kNo, std::nullopt, "stream.lz4/1x"},
    {"LaterZstd", with_transforms("](\x8c\x0dstream.zstd/2e"), kNo, std::nullopt, "stream.zstd/2"},
    {"TwoTransforms", with_transforms("](\x8c\x0dstream.zstd/1\x8c\x01xe"), kNo, std::nullopt, "stream.zstd/1, x"},

    // Files.
    {"FileAbove", respelled("__0_0.distcp", "../a.distcp"), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileBelow", respelled("__0_0.distcp", "a/b.distcp"), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileAbsolute", respelled("__0_0.distcp", "/etc/passwd"), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileIsTheFolder", respelled("__0_0.distcp", "."), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileIsTheFolderAbove", respelled("__0_0.distcp", ".."), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileIsEmpty", respelled("__0_0.distcp", ""), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileWithNul", replaced("__0_0.distcp", "__0_0\0distcp"s), kBad, FindingKind::kBadPickle, "not a plain file name"},
    {"FileWithBackslash", respelled("__0_0.distcp", "..\\a.distcp"), kBad, FindingKind::kBadPickle,
     "not a plain file name"},
    {"FileMissing", respelled("__0_0.distcp", "__3_0.distcp"), ErrorCode::kNotFound, FindingKind::kMissingFile,
     "__3_0.distcp is missing; .metadata expects 2 chunks and objects in it"},
    {"NoMetadata", without(".metadata"), ErrorCode::kNotFound, FindingKind::kMissingFile, ".metadata is missing"},
    {"MetadataLeftUnfinished",
     [](GoldenDcp& golden) {
       golden.files[".metadata.tmp"] = golden.files[".metadata"];
       golden.files.erase(".metadata");
     },
     ErrorCode::kNotFound, FindingKind::kMissingFile, "the save was interrupted"},
    {"EmptyPickle", [](GoldenDcp& golden) { golden.files[".metadata"].clear(); }, kBad, FindingKind::kBadPickle,
     "empty"},

    // Contradictions between .metadata and items are found when these are located.
    {"OtherDtype", respelled("float32", "int32"), kBad, FindingKind::kDtypeMismatch,
     ".metadata states a different dtype"},
    {"ItemIsNoZip", in_items("PK\x03\x04", "XK\x03\x04", 6), kBad, FindingKind::kBadHeader, "not a torch.save zip"},
    {"ItemPickleFlipped", in_items("torch._utils\n", "torch._utilz\n"), kBad, FindingKind::kCrcMismatch, "data.pkl"},
};

class DcpDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(DcpDamage, IsRefusedByName) {
  const Damage& damage = GetParam();
  GoldenDcp golden("one_rank");
  damage.make(golden);
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(code_name(error.code()), code_name(damage.code)) << error.what();
  EXPECT_EQ(error.kind(), damage.kind) << error.what();
  EXPECT_THAT(std::string(error.what()) + error.why(), HasSubstr(damage.words));
  EXPECT_NE(error.file(), "") << error.what();
}

INSTANTIATE_TEST_SUITE_P(Fields, DcpDamage, ::testing::ValuesIn(kDamages),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(DcpDamages, AMissingFileNamesItsRank) {
  GoldenDcp golden("four_ranks");
  golden.files.erase("__2_0.distcp");
  EXPECT_EQ(test::error_of([&] { golden.open(); }).rank(), 2);
}

TEST(DcpDamages, AChunkOfAnotherShapeThanItsItem) {
  GoldenDcp golden("one_rank");
  for (int nth : {0, 0}) golden.replace(".metadata", "K\x03K\x04\x86", "K\x04K\x03\x86", nth);
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(error.kind(), FindingKind::kShapeMismatch);
  EXPECT_EQ(error.expected(), "[4, 3]");
  EXPECT_EQ(error.found(), "[3, 4]");
  EXPECT_EQ(error.tensor(), "w");
}

TEST(DcpDamages, EveryCutOfTheMetadataIsRefused) {
  const GoldenDcp whole("one_rank");
  const std::size_t size = whole.files.at(".metadata").size();
  for (std::size_t cut = 0; cut < size; ++cut) {
    GoldenDcp golden("one_rank");
    golden.files[".metadata"].resize(cut);
    const Error error = test::error_of([&] { golden.open(); });
    EXPECT_EQ(error.kind(), FindingKind::kBadPickle) << cut;
    EXPECT_EQ(code_name(error.code()), "corruption") << cut;
  }
}

// At the metadata's opcodes, with the frame's length corrected too.
TEST(DcpDamages, EveryCutOfTheMetadatasOpcodesIsRefused) {
  const GoldenDcp whole("one_rank");
  const std::string content = whole.files.at(".metadata");
  for (std::size_t cut = 12; cut < content.size(); ++cut) {
    GoldenDcp golden("one_rank");
    golden.files[".metadata"].resize(cut);
    golden.replace(".metadata", content.substr(0, 2), content.substr(0, 2));
    EXPECT_EQ(test::error_of([&] { golden.open(); }).kind(), FindingKind::kBadPickle) << cut;
  }
}

TEST(DcpDamages, EveryCutOfAnItemsFileIsRefused) {
  const GoldenDcp whole("one_rank");
  const std::size_t size = whole.files.at("__0_0.distcp").size();
  for (std::size_t cut = 0; cut < size; ++cut) {
    GoldenDcp golden("one_rank");
    golden.files["__0_0.distcp"].resize(cut);
    EXPECT_EQ(test::error_of([&] { golden.open(); }).kind(), FindingKind::kTruncated) << cut;
  }
}

// For any changed byte, the content that is read is right, or an Error names the problem.
TEST(DcpDamages, NoChangedByteOfTheMetadataDoesHarm) {
  const GoldenDcp whole("one_rank");
  const std::string content = whole.files.at(".metadata");
  for (std::size_t at = 0; at < content.size(); ++at) {
    for (const char change : {'\x01', '\xff', '\x20'}) {
      GoldenDcp golden("one_rank");
      golden.files[".metadata"][at] = static_cast<char>(content[at] ^ change);
      try {
        golden.open_located()->load_objects();
      } catch (const Error& error) {
        EXPECT_NE(code_name(error.code()), "invalid_argument") << at << ": " << error.what();
      }
    }
  }
}

TEST(DcpDamages, AFolderInTheFilesPlaceIsNamed) {
  GoldenDcp golden("one_rank");
  golden.files["__0_0.distcp/x"] = golden.files.at("__0_0.distcp");
  golden.files.erase("__0_0.distcp");
  const Error error = test::error_of([&] { golden.open(); });
  EXPECT_EQ(code_name(error.code()), "not_found");
  EXPECT_THAT(error.what(), HasSubstr("__0_0.distcp is not a regular file"));
}

// The bytes that SerializationFormat.SAFETENSORS leaves at the item's offset in .metadata.
TEST(DcpDamages, ASafetensorsFileIsNamed) {
  GoldenDcp golden("one_rank");
  std::string& file = golden.files.at("__0_0.distcp");
  file.replace(1261, 12, "\x58\0\0\0\0\0\0\0{\"__"s);
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(code_name(error.code()), "unsupported");
  EXPECT_THAT(error.what(), HasSubstr("SerializationFormat.SAFETENSORS"));
}

TEST(DcpDamages, AnItemThatIsNoZstdStreamIsNamed) {
  GoldenDcp golden("one_rank");
  golden.replace(".metadata", kPlace,
                 kPlace.substr(0, kPlace.size() - 2) + "\x8c\x15transform_descriptors](\x8c\x0dstream.zstd/1eub");
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(error.kind(), FindingKind::kBadHeader);
  EXPECT_THAT(error.what(), HasSubstr("not a zstd stream"));
  EXPECT_EQ(error.tensor(), "w");
}

}  // namespace
}  // namespace shard
