#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/formats/torch_files.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using testing::located;
using testing::MemoryFiles;
using testing::NamedRecord;
using testing::pack;
using testing::storage_of;
using testing::stored_of;
using testing::unpack;

// An open golden file; it owns the memory.
struct Opened {
  MemoryFiles files;
  std::unique_ptr<Reader> reader;
  const Catalog& catalog() const { return reader->catalog(); }
};
std::unique_ptr<Opened> open_golden(const std::string& name) {
  auto opened = std::make_unique<Opened>();
  opened->files.put("/" + name, golden("torch/" + name));
  opened->reader = opened->files.open("/" + name);
  return opened;
}

std::vector<std::string> names(const Catalog& catalog) {
  std::vector<std::string> all;
  for (const Tensor& tensor : catalog.tensors) all.emplace_back(tensor.name);
  return all;
}

const Object* find_object(const Catalog& catalog, const std::string& name) {
  for (const Object& object : catalog.objects) {
    if (object.name == name) return &object;
  }
  return nullptr;
}

std::vector<std::int64_t> numbers(Dims dims) { return {dims.begin(), dims.end()}; }

TEST(TorchReader, ListsAStateDictByName) {
  const auto file = open_golden("state.pt");
  EXPECT_THAT(names(file->catalog()),
              ElementsAre("base", "embed.weight", "lm_head.weight", "none", "row", "scalar", "transposed"));
  EXPECT_EQ(file->catalog().format, "torch");
  EXPECT_EQ(file->catalog().format_version, "zip, torch>=2.7");
  EXPECT_EQ(file->catalog().files[0].path, "state.pt");
  EXPECT_EQ(file->catalog().files[0].bytes, 2633);
}

TEST(TorchReader, KeysWithDotsNeedNoPath) {
  EXPECT_TRUE(open_golden("state.pt")->catalog().find("embed.weight")->path.empty());
}

TEST(TorchReader, TiedWeightsShareAStorageAndAreAliases) {
  const auto file = open_golden("state.pt");
  const Catalog& catalog = file->catalog();
  EXPECT_EQ(stored_of(catalog, "lm_head.weight").storage, stored_of(catalog, "embed.weight").storage);
  EXPECT_EQ(catalog.find("lm_head.weight")->alias_of, 1U);
  EXPECT_EQ(catalog.find("embed.weight")->alias_of, kNoIndex);
}

TEST(TorchReader, ATransposedViewKeepsItsStrides) {
  const auto file = open_golden("state.pt");
  const StoredTensor& stored = stored_of(file->catalog(), "transposed");
  EXPECT_THAT(numbers(stored.shape), ElementsAre(6, 4));
  EXPECT_THAT(numbers(stored.strides), ElementsAre(1, 6));
  EXPECT_EQ(file->catalog().find("transposed")->alias_of, kNoIndex);
}

TEST(TorchReader, ARowViewKeepsItsOffset) {
  const auto file = open_golden("state.pt");
  EXPECT_EQ(stored_of(file->catalog(), "row").first, 6);
  EXPECT_EQ(storage_of(file->catalog(), "row").bytes, 96);
}

TEST(TorchReader, StoragesAreLocatedOnlyWhenAsked) {
  const auto file = open_golden("state.pt");
  EXPECT_EQ(storage_of(file->catalog(), "base").offset, -1);
  EXPECT_EQ(storage_of(located(*file->reader), "base").offset, 1344);
}

TEST(TorchReader, LocatesWhereTheElementsLie) {
  const auto file = open_golden("state.pt");
  const Storage& storage = storage_of(located(*file->reader), "base");
  std::vector<float> values(24);
  file->reader->file(storage.file)->read_at(storage.offset, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values[0], 0.0F);
  EXPECT_EQ(values[23], 23.0F);
}

TEST(TorchReader, ZeroDimensionalAndEmptyTensors) {
  const auto file = open_golden("state.pt");
  EXPECT_TRUE(file->catalog().find("scalar")->shape.empty());
  EXPECT_THAT(numbers(file->catalog().find("none")->shape), ElementsAre(0, 3));
  EXPECT_EQ(storage_of(located(*file->reader), "none").bytes, 0);
}

TEST(TorchReader, ModuleMetadataStaysInTheTree) {
  const auto file = open_golden("state.pt");
  ASSERT_NE(file->catalog().root, nullptr);
  ASSERT_NE(file->catalog().root->extra(), nullptr);
  const Value* metadata = find_key(*file->catalog().root->state(), "_metadata");
  ASSERT_NE(metadata, nullptr);
  EXPECT_NE(find_key(*metadata, "embed"), nullptr);
}

TEST(TorchReader, TreesHoldTheNumbersOfTensors) {
  const auto file = open_golden("state.pt");
  const Value* row = find_key(*file->catalog().root, "row");
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->kind, ValueKind::kTensor);
  EXPECT_EQ(file->catalog().tensors[static_cast<std::size_t>(row->number)].name, "row");
}

TEST(TorchReader, NestedContainersGivePaths) {
  const auto file = open_golden("nested.pt");
  const Tensor* deep = file->catalog().find("mixed.2.deep");
  ASSERT_NE(deep, nullptr);
  ASSERT_EQ(deep->path.size(), 3U);
  EXPECT_EQ(deep->path[0].key(), "mixed");
  EXPECT_EQ(deep->path[1].index, 2);
  EXPECT_FALSE(deep->path[1].is_int_key);
  EXPECT_EQ(deep->path[2].key(), "deep");
}

TEST(TorchReader, IntegerKeysAreIntegersInPaths) {
  const auto file = open_golden("nested.pt");
  const Tensor* step = file->catalog().find("optimizer.state.0.step");
  ASSERT_NE(step, nullptr);
  EXPECT_TRUE(step->path[2].is_int_key);
  EXPECT_NE(file->catalog().find("3.integer key"), nullptr);
}

TEST(TorchReader, ObjectsAreLeaves) {
  const auto file = open_golden("nested.pt");
  const Catalog& catalog = file->catalog();
  ASSERT_NE(find_object(catalog, "step"), nullptr);
  EXPECT_EQ(find_object(catalog, "step")->value->number, 10);
  EXPECT_EQ(find_object(catalog, "huge")->value->kind, ValueKind::kLong);
  EXPECT_EQ(find_object(catalog, "mixed.1.1")->value->text(), "x");
  EXPECT_EQ(find_object(catalog, "optimizer.param_groups.0.lr")->value->real, 0.5);
  EXPECT_EQ(type_name(*find_object(catalog, "dtype")->value), "torch.dtype");
  EXPECT_EQ(type_name(*find_object(catalog, "size")->value), "torch.Size");
  EXPECT_EQ(type_name(*find_object(catalog, "empty.list")->value), "list");
}

TEST(TorchReader, EveryDtypeHasTheBytesOfItsElements) {
  const auto file = open_golden("dtypes.pt");
  const Catalog& catalog = located(*file->reader);
  ASSERT_EQ(catalog.tensors.size(), 22U);
  for (const Tensor& tensor : catalog.tensors) {
    EXPECT_EQ(dtype_name(tensor.dtype), tensor.name);
    const Storage& storage = storage_of(catalog, std::string(tensor.name));
    std::vector<unsigned char> bytes(static_cast<std::size_t>(storage.bytes));
    file->reader->file(0)->read_at(storage.offset, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(storage.bytes, element_bytes(tensor.dtype) * 2) << tensor.name;
    for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], i) << tensor.name;
  }
}

TEST(TorchReader, ABareTensorHasTheEmptyName) {
  const auto file = open_golden("bare.pt");
  EXPECT_THAT(names(file->catalog()), ElementsAre(""));
  EXPECT_EQ(file->catalog().root->kind, ValueKind::kTensor);
}

TEST(TorchReader, ParametersAreTensors) {
  const auto file = open_golden("parameter.pt");
  EXPECT_THAT(names(file->catalog()), ElementsAre("p", "q", "t"));
  EXPECT_TRUE(stored_of(file->catalog(), "p").requires_grad);
  EXPECT_FALSE(stored_of(file->catalog(), "q").requires_grad);
  EXPECT_TRUE(stored_of(file->catalog(), "t").requires_grad);
  EXPECT_TRUE(find_key(*file->catalog().root, "p")->is_call_of("torch._utils", "_rebuild_parameter"));
}

TEST(TorchReader, ManyTensorsAreFoundByKey) {
  const auto file = open_golden("many.pt");
  ASSERT_EQ(file->catalog().tensors.size(), 300U);
  const Storage& storage = storage_of(located(*file->reader), "layers.217.weight");
  float value = 0;
  file->reader->file(0)->read_at(storage.offset, std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, 217.0F);
}

TEST(TorchReader, OneObjectUnderSeveralNamesIsListedUnderEach) {
  EXPECT_THAT(names(open_golden("same_object.pt")->catalog()), ElementsAre("x.w", "y", "z.0"));
  EXPECT_THAT(names(open_golden("same_dict.pt")->catalog()), ElementsAre("x.w", "y.w"));
}

TEST(TorchReader, TensorsThatAreNoPlainArraysAreObjects) {
  const auto file = open_golden("sparse.pt");
  EXPECT_THAT(names(file->catalog()), ElementsAre("w"));
  EXPECT_NE(find_object(file->catalog(), "sparse"), nullptr);
  EXPECT_NE(find_object(file->catalog(), "meta"), nullptr);
}

TEST(TorchReader, TensorsInAttributesAreAWarning) {
  const auto file = open_golden("namespace.pt");
  ASSERT_EQ(file->catalog().warnings.size(), 1U);
  EXPECT_THAT(file->catalog().warnings[0], HasSubstr("did not list tensors stored as attributes of objects: 'args'"));
}

TEST(TorchReader, OlderAndUnusualFilesRead) {
  EXPECT_EQ(open_golden("protocol4.pt")->catalog().tensors.size(), 1U);
  EXPECT_EQ(open_golden("no_crc.pt")->catalog().tensors.size(), 1U);
  EXPECT_EQ(open_golden("no_byteorder.pt")->catalog().tensors.size(), 1U);
}

TEST(TorchReader, VersionSaysWhatTheRecordsSay) {
  std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
  std::erase_if(records, [](const NamedRecord& record) { return record.name.starts_with(".format_version"); });
  MemoryFiles files;
  files.put("/a.pt", pack(records));
  EXPECT_EQ(files.open("/a.pt")->catalog().format_version, "zip, torch>=2.1");
  std::erase_if(records, [](const NamedRecord& record) { return record.name == "byteorder"; });
  files.put("/b.pt", pack(records));
  EXPECT_EQ(files.open("/b.pt")->catalog().format_version, "zip, torch>=1.6");
}

TEST(TorchReader, VersionsThatTorchReadsAreRead) {
  for (const char* version : {"1", "3\n", "10\n"}) {
    std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
    for (NamedRecord& record : records) record.content = record.name == "version" ? version : record.content;
    MemoryFiles files;
    files.put("/a.pt", pack(records));
    EXPECT_FALSE(files.open("/a.pt")->catalog().tensors.empty()) << version;
  }
}

// The rule of torch's reader; the current torch refuses the other folder.
TEST(TorchReader, TheFirstRecordsTopFolderCounts) {
  std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
  records.push_back({"x/data.pkl", "\x80\x02}."});
  records.push_back({"x/version", "99"});
  std::string bytes = pack(records);
  for (std::size_t at = 0; (at = bytes.find("archive/x/", at)) != std::string::npos;) {
    bytes.replace(at, 10, "different/");
  }
  MemoryFiles files;
  files.put("/a.pt", bytes);
  EXPECT_THAT(names(files.open("/a.pt")->catalog()),
              ::testing::ElementsAreArray(names(open_golden("state.pt")->catalog())));
}

TEST(TorchDetect, ClaimsZipsFoldersAndIndices) {
  MemoryFiles files;
  files.put("/a", golden("torch/bare.pt"));
  files.put("/hf/pytorch_model.bin.index.json", golden("torch/hf/pytorch_model.bin.index.json"));
  files.put("/single/pytorch_model.bin", golden("torch/bare.pt"));
  EXPECT_TRUE(files.detect("/a"));
  EXPECT_TRUE(files.detect("/hf"));
  EXPECT_TRUE(files.detect("/hf/pytorch_model.bin.index.json"));
  EXPECT_TRUE(files.detect("/single"));
}

TEST(TorchDetect, LeavesOthersAlone) {
  MemoryFiles files;
  files.put("/empty", "");
  files.put("/text.pt", "PK is not enough to be a zip, and this is none");
  files.put("/arrays.npz", pack({{"x", "y"}}).replace(30, 9, "archive_x"));
  files.put("/folder/model.safetensors", "x");
  for (const char* path : {"/empty", "/text.pt", "/arrays.npz", "/folder"}) {
    EXPECT_FALSE(files.detect(path)) << path;
  }
}

Error error_of(MemoryFiles& files, const std::string& path) {
  try {
    files.open(path);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInterrupted, "nothing was thrown");
}

TEST(TorchReader, RefusesTorchScriptByName) {
  MemoryFiles files;
  files.put("/script.pt", golden("torch/script.pt"));
  const Error error = error_of(files, "/script.pt");
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("TorchScript"));
}

// Records of state.pt, changed; the expected error of the reader.
struct Damage {
  const char* what;
  std::function<void(std::vector<NamedRecord>&)> mutate;
  ErrorCode code;
  const char* words;
  std::optional<FindingKind> kind;
};

std::string& content(std::vector<NamedRecord>& records, const std::string& name) {
  for (NamedRecord& record : records) {
    if (record.name == name) return record.content;
  }
  throw std::runtime_error("no record " + name);
}

void swap_text(std::string& in, const std::string& from, const std::string& to) {
  in.replace(in.find(from), from.size(), to);
}

void drop(std::vector<NamedRecord>& records, const std::string& name) {
  std::erase_if(records, [&](const NamedRecord& record) { return record.name == name; });
}

class TorchDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(TorchDamage, IsRefusedByName) {
  std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
  GetParam().mutate(records);
  MemoryFiles files;
  files.put("/state.pt", pack(records));
  const Error error = error_of(files, "/state.pt");
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
  EXPECT_EQ(error.kind(), GetParam().kind);
  EXPECT_FALSE(error.file().empty());
}

using Records = std::vector<NamedRecord>;
const Damage kDamage[] = {
    {"no pickle", [](Records& r) { drop(r, "data.pkl"); }, ErrorCode::kCorruption, "no record data.pkl",
     FindingKind::kBadHeader},
    {"pickle cut", [](Records& r) { content(r, "data.pkl").resize(100); }, ErrorCode::kCorruption, "",
     FindingKind::kBadPickle},
    {"pickle empty", [](Records& r) { content(r, "data.pkl").clear(); }, ErrorCode::kCorruption, "",
     FindingKind::kBadPickle},
    {"unknown global",
     [](Records& r) { swap_text(content(r, "data.pkl"), "_rebuild_tensor_v2", "_rebuild_tensor_v9"); },
     ErrorCode::kCorruption, "_rebuild_tensor_v9", FindingKind::kForbiddenGlobal},
    {"os system", [](Records& r) { swap_text(content(r, "data.pkl"), "ccollections\nOrderedDict", "cos\nsystem"); },
     ErrorCode::kCorruption, "os.system", FindingKind::kForbiddenGlobal},
    {"unknown storage class", [](Records& r) { swap_text(content(r, "data.pkl"), "FloatStorage", "FloatTensor"); },
     ErrorCode::kCorruption, "FloatTensor", FindingKind::kBadPickle},
    {"storage key",
     [](Records& r) {
       swap_text(content(r, "data.pkl"), "X\x01" + std::string("\0\0\0", 3) + "0",
                 "X\x01" + std::string("\0\0\0", 3) + "7");
     },
     ErrorCode::kCorruption, "data/7 is missing", FindingKind::kMissingFile},
    {"storage record missing", [](Records& r) { drop(r, "data/1"); }, ErrorCode::kCorruption, "data/1 is missing",
     FindingKind::kMissingFile},
    {"storage record short", [](Records& r) { content(r, "data/1").resize(92); }, ErrorCode::kCorruption,
     "data/1 has 92 bytes, but the pickle records 96", FindingKind::kShapeMismatch},
    {"storage record long", [](Records& r) { content(r, "data/1") += "more"; }, ErrorCode::kCorruption,
     "data/1 has 100 bytes, but the pickle records 96", FindingKind::kShapeMismatch},
    {"view past its storage", [](Records& r) { swap_text(content(r, "data.pkl"), "K\x06K\x01\x86", "K\x07K\x01\x86"); },
     ErrorCode::kCorruption, "extends past the end of its storage", FindingKind::kOutOfBounds},
    {"byte order", [](Records& r) { content(r, "byteorder") = "middle"; }, ErrorCode::kCorruption,
     "neither little nor big", FindingKind::kBadHeader},
    {"version past torchs", [](Records& r) { content(r, "version") = "11\n"; }, ErrorCode::kCorruption,
     "does not contain a version of torch.save's zips", FindingKind::kBadHeader},
    {"version zero", [](Records& r) { content(r, "version") = "0\n"; }, ErrorCode::kCorruption,
     "does not contain a version of torch.save's zips", FindingKind::kBadHeader},
    {"version no number", [](Records& r) { content(r, "version") = "abc"; }, ErrorCode::kCorruption,
     "does not contain a version of torch.save's zips", FindingKind::kBadHeader},
    {"other version record",
     [](Records& r) {
       r.push_back({".data/version", "11"});
     },
     ErrorCode::kCorruption, "does not contain a version of torch.save's zips", FindingKind::kBadHeader},
};
INSTANTIATE_TEST_SUITE_P(Each, TorchDamage, ::testing::ValuesIn(kDamage), [](const auto& damage) {
  std::string name = damage.param.what;
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
});

TEST(TorchReader, TruncationAnywhereIsCorruption) {
  const std::string bytes = golden("torch/state.pt");
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    MemoryFiles files;
    files.put("/state.pt", bytes.substr(0, size));
    const Error error = error_of(files, "/state.pt");
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << size;
  }
}

TEST(TorchReader, ADamagedLocalHeaderIsFoundWhenItIsNeeded) {
  std::string bytes = golden("torch/state.pt");
  bytes[bytes.find("state/data/1") + 6] = 'X';
  MemoryFiles files;
  files.put("/state.pt", bytes);
  const std::unique_ptr<Reader> reader = files.open("/state.pt");
  EXPECT_THROW(located(*reader), Error);
}

class TorchFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.put("/hf/" + first_, golden("torch/hf/" + first_));
    files_.put("/hf/" + second_, golden("torch/hf/" + second_));
    put_index(R"("a": ")" + first_ + R"(", "b": ")" + first_ + R"(", "c": ")" + second_ + '"');
  }
  void put_index(const std::string& weight_map) {
    files_.put("/hf/pytorch_model.bin.index.json", R"({"metadata": {}, "weight_map": {)" + weight_map + "}}");
  }
  MemoryFiles files_;
  const std::string first_ = "pytorch_model-00001-of-00002.bin", second_ = "pytorch_model-00002-of-00002.bin";
};

TEST_F(TorchFolder, FilesAreOneCheckpoint) {
  const std::unique_ptr<Reader> reader = files_.open("/hf");
  EXPECT_THAT(names(reader->catalog()), ElementsAre("a", "b", "c"));
  EXPECT_EQ(reader->catalog().files.size(), 2U);
  EXPECT_EQ(storage_of(located(*reader), "c").file, 1U);
  EXPECT_EQ(mapping_items(*reader->catalog().root).size(), 6U);
}

TEST_F(TorchFolder, OpensByItsIndex) {
  EXPECT_EQ(files_.open("/hf/pytorch_model.bin.index.json")->catalog().tensors.size(), 3U);
}

TEST_F(TorchFolder, ASingleFileNeedsNoIndex) {
  files_.put("/one/pytorch_model.bin", golden("torch/hf/" + first_));
  EXPECT_THAT(names(files_.open("/one")->catalog()), ElementsAre("a", "b"));
}

TEST_F(TorchFolder, AnIndexMayListTheKeysOfTheFilesDicts) {  // The index of ColossalAI for an optimizer.
  files_.put("/optimizer/pytorch_optim-00001.bin", golden("torch/nested.pt"));
  std::string map;
  for (const char* const key : {"3", "mixed", "model", "optimizer"}) {
    map += std::string(map.empty() ? "" : ", ") + '"' + key + R"(": "pytorch_optim-00001.bin")";
  }
  files_.put("/optimizer/pytorch_optim.bin.index.json", R"({"metadata": {}, "weight_map": {)" + map + "}}");
  const std::unique_ptr<Reader> reader = files_.open("/optimizer");
  EXPECT_EQ(reader->catalog().tensors.size(), 10U);
  EXPECT_THAT(reader->catalog().warnings, ::testing::IsEmpty());
}

TEST_F(TorchFolder, AFileThatTheIndexNamesMustBeThere) {
  put_index(R"("a": ")" + first_ + R"(", "b": ")" + second_ + R"(", "c": "pytorch_model-00003-of-00003.bin")");
  const Error error = error_of(files_, "/hf");
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_EQ(error.file(), "/hf/pytorch_model-00003-of-00003.bin");
}

TEST_F(TorchFolder, ATensorThatTheIndexNamesMustBeInItsFile) {
  put_index(R"("a": ")" + first_ + R"(", "b": ")" + second_ + R"(", "c": ")" + second_ + '"');
  const Error error = error_of(files_, "/hf");
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kIndexMismatch);
  EXPECT_EQ(error.tensor(), "b");
}

TEST_F(TorchFolder, ATensorThatTheIndexLacksIsAWarning) {
  put_index(R"("a": ")" + first_ + R"(", "c": ")" + second_ + '"');
  const std::unique_ptr<Reader> reader = files_.open("/hf");
  EXPECT_EQ(reader->catalog().tensors.size(), 3U);
  ASSERT_EQ(reader->catalog().warnings.size(), 1U);
  EXPECT_THAT(reader->catalog().warnings[0], HasSubstr("read from its files: 'b'"));
}

TEST_F(TorchFolder, AFileThatTheIndexLacksIsAWarning) {
  files_.put("/hf/pytorch_model-00009-of-00009.bin", golden("torch/bare.pt"));
  const std::unique_ptr<Reader> reader = files_.open("/hf");
  EXPECT_EQ(reader->catalog().tensors.size(), 3U);
  ASSERT_EQ(reader->catalog().warnings.size(), 1U);
  EXPECT_THAT(reader->catalog().warnings[0], HasSubstr("pytorch_model-00009-of-00009.bin"));
}

TEST_F(TorchFolder, ATensorInTwoFilesIsRefused) {
  files_.put("/hf/" + second_, golden("torch/hf/" + first_));
  put_index(R"("a": ")" + first_ + R"(", "b": ")" + second_ + '"');
  const Error error = error_of(files_, "/hf");
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kDuplicateName);
}

TEST_F(TorchFolder, FileNamesInTheIndexLeadNowhereElse) {
  put_index(R"("a": "../secret.bin")");
  EXPECT_EQ(error_of(files_, "/hf").code(), ErrorCode::kCorruption);
}

TEST_F(TorchFolder, PartsWithoutTheirIndexAreNotFound) {
  files_.put("/parts/" + first_, golden("torch/hf/" + first_));
  const Error error = error_of(files_, "/parts");
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("not their index"));
  EXPECT_THAT(error.hint(), HasSubstr("repair the checkpoint"));
}

}  // namespace
}  // namespace shard
