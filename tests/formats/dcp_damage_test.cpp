// Each field of .metadata and of the items, wrong once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  const char* kind;
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
constexpr ErrorCode kBad = ErrorCode::kCorruption;

const Damage kDamages[] = {
    {"NoStateDict", respelled("state_dict_metadata", "x"), kBad, "bad_pickle", "Metadata has no state_dict_metadata"},
    {"NoStorageData", respelled("storage_data", "x"), kBad, "bad_pickle", "Metadata has no storage_data"},
    {"NoProperties", respelled("properties", "x"), kBad, "bad_pickle", "w has no properties"},
    {"NoSize", respelled("size", "x"), kBad, "bad_pickle", "w has no size"},
    {"NoChunks", respelled("chunks", "x"), kBad, "bad_pickle", "w has no chunks"},
    {"NoChunkOffsets", respelled("offsets", "x"), kBad, "bad_pickle", "w has no offsets"},
    {"NoChunkSizes", respelled("sizes", "x"), kBad, "bad_pickle", "w has no sizes"},
    {"NoName", respelled("fqn", "x"), kBad, "bad_pickle", "MetadataIndex has no fqn"},
    {"NoFile", respelled("relative_path", "x"), kBad, "bad_pickle", "_StorageInfo has no relative_path"},
    {"NoOffset", respelled("offset", "x"), kBad, "bad_pickle", "_StorageInfo has no offset"},
    {"OtherRoot", respelled("Metadata", "StorageMeta"), kBad, "bad_pickle", "the pickle is no Metadata"},
    {"ForbiddenClass", respelled("_StorageInfo", "_Other"), kBad, "forbidden_global", "filesystem._Other"},
    {"NoDtype", respelled("float32", "Tensor"), kBad, "bad_pickle", "its dtype is none of torch's"},
    {"SparseLayout", respelled("torch.strided", "torch.sparse_coo"), ErrorCode::kUnsupported, "", "torch.sparse_coo"},
    {"FileElsewhere", respelled("__0_0.distcp", "../a.distcp"), kBad, "bad_pickle", "no plain file name"},
    {"FileMissing", respelled("__0_0.distcp", "__3_0.distcp"), ErrorCode::kNotFound, "missing_file",
     "__3_0.distcp is missing; 2 chunks and objects lie in it"},
    {"ByteCheckpoint", respelled("torch.distributed.checkpoint.metadata", "bytecheckpoint.checkpointer.meta_type"),
     ErrorCode::kUnsupported, "", "ByteCheckpoint"},
    // SIZE (3, 4) is spelled K 3 K 4 TUPLE2, first as the tensor's size, then as the chunk's sizes.
    {"Gap", replaced("K\x03K\x04\x86", "K\x04K\x04\x86"), kBad, "gap", "w"},
    {"ChunkOutside", replaced("K\x03K\x04\x86", "K\x02K\x04\x86"), kBad, "out_of_bounds", "w"},
    {"OtherDimensions", replaced("K\x03K\x04\x86", "K\x03\x85"), kBad, "shape_mismatch",
     "a chunk of it another number"},
    {"SizeIsNegative", replaced("K\x03K\x04\x86", "K\x03J\xff\xff\xff\xff\x86"), kBad, "bad_pickle",
     "holds what is no size"},
    {"SizeIsText", replaced("K\x03K\x04\x86", "K\x03\x8c\x01x\x86"), kBad, "bad_pickle", "holds what is no size"},
    {"SizeOverflows", replaced("K\x03K\x04\x86", "K\x03\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x86"s, 1), kBad, "",
     ""},
    {"PlaceOfNoChunk", replaced("K\0K\0\x86"s, "K\x01K\0\x86"s, 1), kBad, "bad_pickle", "where none begins"},
    {"ChunkWithoutPlace", replaced("K\0K\0\x86"s, "K\x01K\0\x86"s), kBad, "bad_pickle", "where none begins"},
    {"Transformed",
     replaced("\x8c\x06length\x94", "\x8c\x15transform_descriptors](\x8c\x0dstream.zstd/1e\x8c\x06length\x94"),
     ErrorCode::kUnsupported, "", "stream.zstd/1"},
    {"CutPickle", [](GoldenDcp& golden) { golden.files[".metadata"].resize(500); }, kBad, "bad_pickle", "pickle, byte"},
    {"EmptyPickle", [](GoldenDcp& golden) { golden.files[".metadata"].clear(); }, kBad, "bad_pickle", "empty"},
    {"CutFile", [](GoldenDcp& golden) { golden.files["__0_0.distcp"].pop_back(); }, kBad, "truncated",
     "has 2837 bytes"},
    {"NoMetadata", [](GoldenDcp& golden) { golden.files.erase(".metadata"); }, ErrorCode::kNotFound, "missing_file",
     ".metadata is missing"},
    {"RankMetadata",
     [](GoldenDcp& golden) {
       golden.files["__0.metadata"] = golden.files[".metadata"];
       golden.files.erase(".metadata");
     },
     ErrorCode::kUnsupported, "", "use_collectives=False"},
    // Contradictions between .metadata and items are found when these are located.
    {"OtherDtype", respelled("float32", "int32"), kBad, "dtype_mismatch", "another dtype than .metadata"},
    {"ItemIsNoZip", in_items("PK\x03\x04", "XK\x03\x04", 6), kBad, "bad_header", "no torch.save zip"},
    {"ItemPickleFlipped", in_items("torch._utils\n", "torch._utilz\n"), kBad, "crc_mismatch", "data.pkl"},
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
  EXPECT_EQ(error.kind(), "shape_mismatch");
  EXPECT_EQ(error.expected(), "[4, 3]");
  EXPECT_EQ(error.found(), "[3, 4]");
  EXPECT_EQ(error.tensor(), "w");
}

TEST(DcpDamages, EveryCutOfTheMetadataIsRefused) {
  const GoldenDcp whole("one_rank");
  const std::size_t size = whole.files.at(".metadata").size();
  for (std::size_t cut = 0; cut < size; cut += 7) {
    GoldenDcp golden("one_rank");
    golden.files[".metadata"].resize(cut);
    EXPECT_EQ(test::error_of([&] { golden.open(); }).kind(), "bad_pickle") << cut;
  }
}

}  // namespace
}  // namespace shard
