// Rarer ways to save: metadata of each rank, zstd, tensors inside objects, files of torch 1.13.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <complex>

#include "formats/dcp/item_bytes.h"
#include "formats/dcp/objects.h"
#include "formats/detect.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/value.h"
#include "libshard/exec/tensor_reader.h"
#include "tests/formats/dcp_golden.h"
#include "tests/formats/torch_files.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::GoldenDcp;
using testing::BytesFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::pack;

/// "name", or "name@rank" for an entry of one rank.
template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    names.emplace_back(entry.name);
    if (entry.rank >= 0) names.back() += "@" + std::to_string(entry.rank);
  }
  return names;
}

/// The elements of tensor number `nth` of that name, row-major.
template <class T>
std::vector<T> elements(Reader& reader, std::string_view name, std::ptrdiff_t nth = 0) {
  const Catalog& catalog = reader.catalog();
  const auto index = static_cast<std::uint32_t>(catalog.find(name) - catalog.tensors.data() + nth);
  reader.locate(std::array{index});
  std::int64_t count = 1;
  for (const std::int64_t size : catalog.tensors[index].shape) count *= size;
  std::vector<T> found(static_cast<std::size_t>(count));
  Progress progress;
  TensorReader(catalog, reader, index, progress).read(0, count, std::as_writable_bytes(std::span(found)));
  return found;
}

std::vector<std::int32_t> ranks_of(const Catalog& catalog, const Tensor& tensor) {
  std::vector<std::int32_t> ranks;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) ranks.push_back(catalog.stored[chunk.stored].rank);
  return ranks;
}

// --- Metadata of each rank ---

TEST(DcpOwnMetadata, ShardsOfAllRanksMakeTheTensor) {
  GoldenDcp golden("own_metadata");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(elements<float>(*reader, "rows"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
  EXPECT_THAT(ranks_of(reader->catalog(), *reader->catalog().find("rows")), ElementsAre(0, 1));
  EXPECT_EQ(reader->catalog().world_size, 2);
}

TEST(DcpOwnMetadata, EqualCopiesAreReplicasAndOthersAreEachRanks) {
  GoldenDcp golden("own_metadata");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(names_of(reader->catalog().tensors),
              ElementsAre("of_rank_0", "of_rank_1", "pair.0", "pair.1@0", "pair.1@1", "plain", "replicated", "rng@0",
                          "rng@1", "rows"));
  EXPECT_THAT(ranks_of(reader->catalog(), *reader->catalog().find("replicated")), ElementsAre(0, 1));
  EXPECT_THAT(ranks_of(reader->catalog(), *reader->catalog().find("pair.0")), ElementsAre(0, 1));
}

TEST(DcpOwnMetadata, EachRanksOwnTensorHasItsValues) {
  GoldenDcp golden("own_metadata");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(elements<std::uint8_t>(*reader, "rng", 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(elements<std::uint8_t>(*reader, "rng", 1), ElementsAre(10, 11, 12));
  EXPECT_THAT(elements<std::int64_t>(*reader, "pair.1", 1), ElementsAre(1));
  EXPECT_THAT(elements<std::int64_t>(*reader, "of_rank_1"), ElementsAre(1));
}

TEST(DcpOwnMetadata, ObjectsThatDifferAreOneEntryPerRank) {
  GoldenDcp golden("own_metadata");
  const std::unique_ptr<Reader> reader = golden.open();
  reader->load_objects();
  const std::vector<Object>& objects = reader->catalog().objects;
  EXPECT_THAT(names_of(objects), ElementsAre("mixed.0@0", "mixed.0@1", "mixed.1", "mixed.2.0", "mixed.2.1@0",
                                             "mixed.2.1@1", "pair.2", "seen@0", "seen@1", "step"));
  EXPECT_EQ(objects[8].value->number, 101);
  EXPECT_EQ(reader->catalog().root, nullptr);
}

TEST(DcpOwnMetadata, FilesAreTheMetadataAndThenTheItems) {
  GoldenDcp golden("own_metadata");
  const std::unique_ptr<Reader> reader = golden.open();
  std::vector<std::string> paths;
  for (const File& file : reader->catalog().files) paths.push_back(file.path);
  EXPECT_THAT(paths, ElementsAre("__0.metadata", "__1.metadata", "__0_0.distcp", "__1_0.distcp"));
}

TEST(DcpOwnMetadata, MetadataOfAllRanksTogetherIsPreferred) {
  GoldenDcp golden("own_metadata"), other("one_rank");
  golden.files[".metadata"] = other.files.at(".metadata");
  golden.files["__0_0.distcp"] = other.files.at("__0_0.distcp");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(names_of(reader->catalog().tensors), ElementsAre("w"));
  EXPECT_THAT(reader->catalog().warnings, ::testing::Contains(HasSubstr("__0.metadata")));
}

struct RankDamage {
  const char* name;
  std::function<void(GoldenDcp&)> make;
  ErrorCode code;
  std::optional<FindingKind> kind;
  const char* words;
};
void PrintTo(const RankDamage& damage, std::ostream* out) { *out << damage.name; }

void rename(GoldenDcp& golden, const std::string& from, const std::string& to) {
  golden.files[to] = golden.files.at(from);
  golden.files.erase(from);
}
auto in_rank_1(std::string what, std::string with, int nth = 0) {
  return [=](GoldenDcp& golden) { golden.replace("__1.metadata", what, with, nth); };
}
using std::string_literals::operator""s;
constexpr ErrorCode kBadRank = ErrorCode::kCorruption, kMissing = ErrorCode::kNotFound;

const RankDamage kRankDamages[] = {
    {"FirstMissing", [](GoldenDcp& golden) { golden.files.erase("__0.metadata"); }, kMissing, FindingKind::kMissingFile,
     "__0.metadata is missing"},
    {"LastMissing", [](GoldenDcp& golden) { golden.files.erase("__1.metadata"); }, kMissing, FindingKind::kMissingFile,
     "__1.metadata is missing"},
    {"AHole",
     [](GoldenDcp& golden) {
       rename(golden, "__1.metadata", "__3.metadata");
       rename(golden, "__1_0.distcp", "__3_0.distcp");
     },
     kMissing, FindingKind::kMissingFile, "__1.metadata is missing"},
    {"LastMissingWithItsItems",
     [](GoldenDcp& golden) {
       golden.files.erase("__1.metadata");
       golden.files.erase("__1_0.distcp");
     },
     kBadRank, FindingKind::kGap, "rows"},
    {"ItemsMissing", [](GoldenDcp& golden) { golden.files.erase("__1_0.distcp"); }, kMissing, FindingKind::kMissingFile,
     "__1_0.distcp is missing"},
    {"Twice", [](GoldenDcp& golden) { golden.files["__01.metadata"] = golden.files.at("__1.metadata"); }, kBadRank,
     FindingKind::kRankMismatch, "__01.metadata and __1.metadata are both of rank 1"},
    {"FilesOfAnother", [](GoldenDcp& golden) { golden.files["__1.metadata"] = golden.files.at("__0.metadata"); },
     kBadRank, FindingKind::kRankMismatch, "__1.metadata places its rank's items in __0_0.distcp"},
    {"OtherDtype",
     in_rank_1("\x8c\x07"
               "float32",
               "\x8c\x07"
               "float16"),
     kBadRank, FindingKind::kDtypeMismatch,
     "__0.metadata and __1.metadata contradict each other: 'rows' has two dtypes"},
    {"OtherShape", in_rank_1("K\x05K\x03\x86", "K\x06K\x03\x86"), kBadRank, FindingKind::kShapeMismatch,
     "__0.metadata and __1.metadata contradict each other: 'rows' has two shapes"},
    {"ObjectAndTensor",
     [](GoldenDcp& golden) {
       in_rank_1("\x8c\x04rows\x94", "\x8c\x04rowz\x94")(golden);
       in_rank_1("\x8c\x04step\x94", "\x8c\x04rows\x94")(golden);
     },
     kBadRank, std::nullopt, "'rows' has a tensor in the former, an object in the latter"},
    {"Overlap",
     [](GoldenDcp& golden) {
       for (int i = 0; i < 2; ++i) in_rank_1("K\x03K\0\x86"s, "K\x02K\0\x86"s)(golden);
     },
     kBadRank, FindingKind::kOverlap,
     "__0.metadata has a chunk of [3, 3] at [0, 0], __1.metadata one of [2, 3] at [2, 0]"},
};

class DcpRankDamage : public ::testing::TestWithParam<RankDamage> {};

TEST_P(DcpRankDamage, IsRefusedByName) {
  const RankDamage& damage = GetParam();
  GoldenDcp golden("own_metadata");
  damage.make(golden);
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(code_name(error.code()), code_name(damage.code)) << error.what();
  EXPECT_EQ(error.kind(), damage.kind) << error.what();
  EXPECT_THAT(std::string(error.what()) + error.why(), HasSubstr(damage.words));
  EXPECT_NE(error.file(), "") << error.what();
}

INSTANTIATE_TEST_SUITE_P(Fields, DcpRankDamage, ::testing::ValuesIn(kRankDamages),
                         [](const auto& each) { return std::string(each.param.name); });

// --- --ranks-expected ---

Error error_expecting(GoldenDcp& golden, std::int64_t ranks) {
  OpenOptions options;
  options.ranks_expected = ranks;
  return test::error_of([&] { golden.open(options); });
}

TEST(DcpRanksExpected, TheRightNumberIsFine) {
  GoldenDcp golden("four_ranks");
  OpenOptions options;
  options.ranks_expected = 4;
  EXPECT_EQ(golden.open(options)->catalog().world_size, 4);
}

TEST(DcpRanksExpected, FewerAreAMissingRank) {
  GoldenDcp golden("four_ranks");
  const Error error = error_expecting(golden, 5);
  EXPECT_EQ(code_name(error.code()), "not_found");
  EXPECT_EQ(error.rank(), 4);
}

TEST(DcpRanksExpected, MoreAreAContradiction) {
  GoldenDcp golden("four_ranks");
  EXPECT_EQ(error_expecting(golden, 3).kind(), FindingKind::kWorldSizeMismatch);
}

TEST(DcpRanksExpected, AnEmptyFileIsARankThatHadNothingToWrite) {
  GoldenDcp golden("four_ranks");
  golden.files["__4_0.distcp"] = "";
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_EQ(reader->catalog().world_size, 5);
  EXPECT_THAT(reader->catalog().warnings, IsEmpty());
}

// --- zstd ---

TEST(DcpZstd, ElementsAreDecodedOnTheWay) {
  GoldenDcp golden("zstd");
  const std::unique_ptr<Reader> reader = golden.open_located();
  EXPECT_THAT(elements<std::int16_t>(*reader, "small"), ElementsAre(0, 1, 2, 3, 4));
  const std::vector<float> zeros = elements<float>(*reader, "zeros");
  EXPECT_EQ(zeros.back(), 1);
  EXPECT_EQ(std::count(zeros.begin(), zeros.end(), 0.f), 59999);
  for (const Storage& storage : reader->catalog().storages) EXPECT_TRUE(!storage.plain || storage.offset < 0);
}

TEST(DcpZstd, ObjectsAndTensorsInsideThemAreDecoded) {
  GoldenDcp golden("zstd");
  const std::unique_ptr<Reader> reader = golden.open_located();
  EXPECT_THAT(elements<float>(*reader, "pair.0"), ElementsAre(3, 4));
  EXPECT_EQ(elements<float>(*reader, "pair.1").size(), 200u);
  reader->load_objects();
  EXPECT_THAT(names_of(reader->catalog().objects), ElementsAre("step", "text"));
  EXPECT_EQ(reader->catalog().objects[1].value->text().size(), 4000u);
}

TEST(DcpZstd, ACutStreamIsNamed) {
  GoldenDcp golden("zstd");
  golden.respell("length", "lengtx");  // Items then reach to the next one; the last one loses its end.
  golden.files["__0_0.distcp"].pop_back();
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(error.kind(), FindingKind::kTruncated);
  EXPECT_THAT(error.what(), HasSubstr("is truncated inside a zstd frame"));
}

TEST(DcpZstd, AStreamThatGrowsPastItsTensorIsStopped) {
  GoldenDcp golden("zstd");
  // The size 300 x 200, as the tensor's and as its chunk's.
  for (int i = 0; i < 2; ++i) golden.replace(".metadata", "M,\x01K\xc8\x86", "K\x02K\x02\x86");
  const Error error = test::error_of([&] { golden.open_located(); });
  EXPECT_EQ(error.kind(), FindingKind::kBadHeader);
  EXPECT_THAT(error.what(), HasSubstr("it decompresses to more than 65552 bytes"));
  EXPECT_EQ(error.tensor(), "zeros");
}

TEST(DcpZstd, ReadingTheMiddleIsPaidForAgain) {
  const std::string zeros(1 << 20, '\0');
  std::string stored(ZSTD_compressBound(zeros.size()), '\0');
  stored.resize(ZSTD_compress(stored.data(), stored.size(), zeros.data(), zeros.size(), 1));
  const auto budget = std::make_shared<Budget>();
  Arena arena(budget);
  const auto file = std::make_shared<BytesFile>(stored);
  const dcp::ZstdItem item(file, {0, file->size(), 0, true}, 1 << 20, arena);
  const std::int64_t once = budget->count(Charge::kDecoded);
  EXPECT_EQ(once, std::ssize(zeros));
  std::byte middle[1];
  item.read_at(900'000, middle);
  EXPECT_GT(budget->count(Charge::kDecoded), once + 900'000);
}

TEST(DcpZstd, AStreamIsStoppedWhereTheBudgetIsSpent) {
  const std::string zeros(1 << 20, '\0');
  std::string stored(ZSTD_compressBound(zeros.size()), '\0');
  stored.resize(ZSTD_compress(stored.data(), stored.size(), zeros.data(), zeros.size(), 1));
  const auto budget = std::make_shared<Budget>();
  budget->charge(Charge::kBytes, kBudgetFloor - 1000);
  Arena arena(budget);
  const auto file = std::make_shared<BytesFile>(stored);
  test::expect_error(ErrorCode::kCorruption, "decoded bytes are far too many", [&] {
    dcp::ZstdItem(file, {0, file->size(), 0, true}, 1 << 20, arena);
  });
}

// --- Elements that are not plain ---

TEST(DcpCoded, ConjugatedAndNegatedElementsAreResolved) {
  GoldenDcp golden("coded");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(elements<float>(*reader, "neg"), ElementsAre(-2, 4));
  const std::vector<std::complex<float>> conj = elements<std::complex<float>>(*reader, "conj");
  EXPECT_THAT(conj, ElementsAre(std::complex<float>(1, -2), std::complex<float>(3, 4)));
}

TEST(DcpCoded, BigEndianElementsAreSwapped) {
  GoldenDcp golden("coded");
  EXPECT_THAT(elements<float>(*golden.open(), "big"), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(DcpCoded, DeflatedElementsAreInflated) {
  GoldenDcp golden("coded");
  const std::unique_ptr<Reader> reader = golden.open();
  const std::vector<float> found = elements<float>(*reader, "deflated");
  EXPECT_EQ(found[99], 99);
  EXPECT_THAT(elements<float>(*reader, "object.0"), ElementsAre(0, 1, 2));
}

// --- Tensors inside objects ---

TEST(DcpInnerTensors, AreListedByTheirPath) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  EXPECT_THAT(elements<float>(*reader, "tuple_of_tensors.0"), ElementsAre(4));
  const Path path = reader->catalog().find("tuple_of_tensors.0")->path;
  ASSERT_EQ(path.size(), 2u);
  EXPECT_EQ(path[0].key(), "tuple_of_tensors");
  EXPECT_TRUE(path[1].is_index);
}

TEST(DcpInnerTensors, StandInTheTreeWithTheirNumber) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> reader = golden.open();
  reader->load_objects();
  const Catalog& catalog = reader->catalog();
  const Value& tuple = *find_key(*catalog.root, "tuple_of_tensors");
  EXPECT_EQ(tuple.kind, ValueKind::kTuple);
  ASSERT_EQ(tuple.items()[0]->kind, ValueKind::kTensor);
  EXPECT_EQ(catalog.tensors[static_cast<std::size_t>(tuple.items()[0]->number)].name, "tuple_of_tensors.0");
  EXPECT_EQ(tuple.items()[1]->number, 5);
}

TEST(DcpInnerTensors, AreNotLookedForWhereMetadataIsEnough) {
  GoldenDcp golden("four_ranks");
  OpenOptions options;
  options.metadata_only = true;
  const std::unique_ptr<Reader> reader = golden.open(options);
  EXPECT_EQ(reader->catalog().find("tuple_of_tensors.0"), nullptr);
  reader->load_objects();  // Their numbers would change: so they are opaque.
  const auto object = std::ranges::find(reader->catalog().objects, "tuple_of_tensors.0", &Object::name);
  ASSERT_NE(object, reader->catalog().objects.end());
  EXPECT_EQ(object->value->kind, ValueKind::kOpaque);
}

TEST(DcpInnerTensors, ADamagedObjectIsRefusedForNobodyWouldMissThem) {
  GoldenDcp golden("four_ranks");
  golden.metadata_files_only();
  const Error error = test::error_of([&] { golden.open(); });
  EXPECT_THAT(error.what(), HasSubstr("not a torch.save zip"));
  EXPECT_NE(error.tensor(), "");
}

TEST(DcpObjects, OfAnUnknownClassAreRefusedWithTheWayOut) {
  const std::string pickled = std::string("\x80\x02") + "c_io\nFileIO\n.";
  const auto file = std::make_shared<BytesFile>(pack({{"data.pkl", pickled}, {"version", "3\n"}}));
  Arena arena;
  const dcp::OpenItem item(std::make_shared<dcp::FetchedFile>(file), {0, file->size()}, 0, arena);
  const dcp::LoadedObject loaded = dcp::load_object(arena, item, {}, {});
  ASSERT_TRUE(loaded.foreign);
  EXPECT_THAT(loaded.foreign->what(), HasSubstr("_io.FileIO"));
  EXPECT_THAT(loaded.foreign->suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kOpaqueGlobals}));
}

const std::string kPersistentStorage =
    "(X\x07" + "\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0000X\x03\0\0\0cpuK\x01tQ"s;

/// Whether a bytes item of this pickled value hides a tensor.
bool hides_tensors(const std::string& value) {
  const auto file = std::make_shared<BytesFile>(pack({{"data.pkl", "\x80\x04" + value + "."}, {"version", "3\n"}}));
  Arena arena;
  const dcp::OpenItem item(std::make_shared<dcp::FetchedFile>(file), {0, file->size()}, 0, arena);
  return dcp::load_object(arena, item, {}, {}).hides_tensors;
}

TEST(DcpObjects, SayThatTensorsAreHiddenInThem) {
  EXPECT_TRUE(hides_tensors("]" + kPersistentStorage + "a"));
  EXPECT_FALSE(
      hides_tensors("]K\x01"
                    "a"));
}

TEST(DcpObjects, SeeTensorsInKeywordArguments) {
  EXPECT_TRUE(hides_tensors("cargparse\nNamespace\n)}X\x01\0\0\0x"s + kPersistentStorage + "s\x92"));
  EXPECT_FALSE(hides_tensors("cargparse\nNamespace\n)}X\x01\0\0\0xK\1s\x92"s));
}

// torch 1.13 flattens nothing: the optimizer's dict is one bytes item.
TEST(DcpInnerTensors, OptimizerStateOfTorch113IsReadByName) {
  GoldenDcp golden("../golden/1.13.1/dcp_training_r2");
  OpenOptions options;
  options.metadata_only = true;  // Its items' pickles are all the metadata that those tensors have.
  const std::unique_ptr<Reader> reader = golden.open(options);
  EXPECT_EQ(reader->catalog().format_version, "torch<=1.13");
  EXPECT_THAT(elements<float>(*reader, "optim.state.1.step"), ElementsAre(6));
  reader->load_objects();
  const Value& optim = *find_key(*reader->catalog().root, "optim");
  EXPECT_EQ(mapping_items(*find_key(optim, "state"))[0]->kind, ValueKind::kInt);
}

// --- Look-alikes ---

TEST(DcpLookAlikes, AMegatronCoreFolderIsNotDcpsAndCanBeReadAsIt) {
  GoldenDcp golden("one_rank");
  golden.files["metadata.json"] = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
  EXPECT_THAT(names_of(golden.open()->catalog().tensors), ElementsAre("w"));
  EXPECT_EQ(detect_format({&golden.fs(), {"/c"}}).traits.name, "megatron-dist");
}

TEST(DcpLookAlikes, MetadataJsonOfOthersIsNoReason) {
  GoldenDcp golden("one_rank");
  golden.files["metadata.json"] = R"({"step": 3})";
  golden.open();
  EXPECT_EQ(detect_format({&golden.fs(), {"/c"}}).traits.name, "dcp");
}

/// `.metadata` with `mcore_data`, as Megatron-Core up to 0.15 writes it: `reshaped` is listed there, "w" as plain.
void add_mcore_data(GoldenDcp& golden, const std::string& reshaped, const std::string& class_module) {
  std::string& content = golden.files.at(".metadata");
  Arena arena;
  pickle::LoadOptions options;
  options.allow = pickle::is_known_global;
  const std::string before = content;
  Value* root = pickle::load(arena, std::as_bytes(std::span(before)), options);
  const auto dict = [&](std::vector<Value*> items) { return make_list(arena, ValueKind::kDict, items); };
  Value* shape = make_list(arena, ValueKind::kTuple, std::vector{make_int(arena, 12)});
  Value* entry = dict({make_string(arena, "nd_reformulated_orig_global_shape"), shape});
  Value* mcore_data = dict({make_string(arena, "w"), dict({}), make_string(arena, reshaped), entry});
  const std::span<Value*> state = root->state()->items();
  std::vector<Value*> items(state.begin(), state.end());
  items.insert(items.end(), {make_string(arena, "mcore_data"), mcore_data});
  root->call->state = dict(items);
  if (!class_module.empty()) root->call->callee = make_global(arena, class_module, "MCoreMetadata");
  pickle::Dumper dumper({.protocol = 4, .tensor = {}});
  dumper.value(*root);
  content = dumper.finish();
}

TEST(DcpMegatron, WeightsAreReadAndReshapedTensorsAreHidden) {
  for (const std::string class_module : {"", "megatron.core.dist_checkpointing.strategies.torch"}) {
    GoldenDcp golden("four_ranks");
    const std::string first(golden.open()->catalog().tensors.front().name);
    const std::size_t tensors = golden.open()->catalog().tensors.size();
    add_mcore_data(golden, first, class_module);
    const std::unique_ptr<Reader> reader = golden.open_located();
    const Catalog& catalog = reader->catalog();
    EXPECT_EQ(catalog.tensors.size(), tensors - 1);
    EXPECT_EQ(catalog.find(first), nullptr);
    const auto object = std::ranges::find(catalog.objects, first, &Object::name);
    ASSERT_NE(object, catalog.objects.end());
    EXPECT_EQ(object->value->kind, ValueKind::kOpaque);
    EXPECT_EQ(object->value->text(), "Tensor");
    EXPECT_THAT(catalog.warnings, ::testing::Contains(HasSubstr("reshaped by Megatron-Core")));
    reader->load_objects();
    const auto loaded = std::ranges::find(catalog.objects, first, &Object::name);
    ASSERT_NE(loaded, catalog.objects.end());
    EXPECT_EQ(loaded->value->kind, ValueKind::kOpaque);
  }
}

TEST(DcpMegatron, PlainEntriesChangeNothing) {
  GoldenDcp golden("one_rank");
  add_mcore_data(golden, "of no tensor", "");
  EXPECT_THAT(names_of(golden.open_located()->catalog().tensors), ElementsAre("w"));
  EXPECT_THAT(golden.open()->catalog().warnings, IsEmpty());
}

TEST(DcpLookAlikes, CommonPtAloneIsNoReason) {
  GoldenDcp golden("one_rank");
  golden.files["common.pt"] = "x";
  golden.open();
  EXPECT_EQ(detect_format({&golden.fs(), {"/c"}}).traits.name, "dcp");
}

TEST(DcpLookAlikes, ItemsWithoutMetadataAreDcp) {
  GoldenDcp golden("one_rank");
  golden.files.erase(".metadata");
  test::expect_error(ErrorCode::kNotFound, ".metadata is missing", [&] { golden.open(); });
  EXPECT_EQ(detect_format({&golden.fs(), {"/c"}}).traits.name, "dcp");
}

}  // namespace
}  // namespace shard
