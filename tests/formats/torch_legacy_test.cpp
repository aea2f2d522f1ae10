// Files of torch before 1.6.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/parts/pickle/opcodes.h"
#include "tests/formats/torch_files.h"

namespace shard {
namespace {

using namespace std::string_literals;
using testing::BytesFile;
using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using testing::MemoryFiles;
using testing::values;

std::string text_op(const std::string& text) {  // BINUNICODE
  return "X" + std::string(1, static_cast<char>(text.size())) + "\0\0\0"s + text;
}
std::string number_op(std::int64_t number) {  // LONG1
  return "\x8a\x08"s + std::string(reinterpret_cast<const char*>(&number), 8);
}
std::string int64(std::int64_t number) { return {reinterpret_cast<const char*>(&number), 8}; }

const std::string kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
const std::string kProtocol = "\x80\x02M\xe9\x03."s;
std::string machine(bool little) {
  return "\x80\x02}(" + text_op("protocol_version") + "M\xe9\x03" + text_op("little_endian") +
         (little ? "\x88" : "\x89") + "u.";
}
const std::string kHooks = "ccollections\nOrderedDict\n)R";

struct Part {  // A tensor over a storage.
  std::string key;
  std::int64_t count = 0;  // The size of the storage.
  std::string cls = "torch\nFloatStorage\n", view = "N";
  std::int64_t numel = 0, first = 0;
  std::string function = "_rebuild_tensor_v2", more = "\x89" + kHooks;
};

std::string tensor(const Part& part) {
  return "ctorch._utils\n" + part.function + "\n((" + text_op("storage") + "c" + part.cls + text_op(part.key) +
         text_op("cpu") + number_op(part.count) + part.view + "tQ" + number_op(part.first) + number_op(part.numel) +
         "\x85K\x01\x85" + part.more + "tR";
}

std::string keys(const std::vector<std::string>& names) {
  std::string text = "\x80\x02](";
  for (const std::string& name : names) text += text_op(name);
  return text + "e.";
}

std::string floats(const std::vector<float>& numbers) {
  return int64(static_cast<std::int64_t>(numbers.size())) +
         std::string(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
}

// {"a": 2 floats of storage 22, "b": 3 floats of storage 11}
const std::string kObject = "\x80\x02}(" + text_op("a") + tensor({.key = "22", .count = 2, .numel = 2}) + text_op("b") +
                            tensor({.key = "11", .count = 3, .numel = 3}) + "u.";
const std::string kHead = kMagic + kProtocol + machine(true);
const std::string kTail = keys({"11", "22"}) + floats({1, 2, 3}) + floats({4, 5});

std::unique_ptr<Reader> open(MemoryFiles& files, const std::string& bytes, const OpenOptions& options = {}) {
  files.put("/old.pt", bytes);
  return files.open("/old.pt", options);
}

Error error_of(const std::string& bytes) {
  MemoryFiles files;
  try {
    open(files, bytes);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInterrupted, "nothing was thrown");
}

TEST(TorchLegacy, TensorsAreFoundByTheKeysInTheirOrder) {
  MemoryFiles files;
  const auto reader = open(files, kHead + kObject + kTail);
  EXPECT_THAT(values<float>(*reader, "a"), ElementsAre(4, 5));
  EXPECT_THAT(values<float>(*reader, "b"), ElementsAre(1, 2, 3));
  EXPECT_EQ(reader->catalog().format_version, "legacy, torch<1.6");
}

TEST(TorchLegacy, ElementsLiePlainInTheFile) {
  MemoryFiles files;
  const std::string bytes = kHead + kObject + kTail;
  const auto reader = open(files, bytes);
  const Storage& storage = testing::storage_of(testing::located(*reader), "a");
  EXPECT_TRUE(storage.plain);
  EXPECT_EQ(storage.offset, static_cast<std::int64_t>(bytes.size()) - 8);
}

TEST(TorchLegacy, DetectsEveryProtocolsMagic) {
  MemoryFiles files;
  files.put("/p2", kHead + kObject + kTail);
  files.put("/p4", "\x80\x04\x95\x0d\0\0\0\0\0\0\0"s + kMagic.substr(2));
  files.put("/p3", "\x80\x03"s + kMagic.substr(2));
  files.put("/other", "\x80\x02\x8a\x0a another number."s);
  EXPECT_TRUE(files.detect("/p2"));
  EXPECT_TRUE(files.detect("/p4"));
  EXPECT_TRUE(files.detect("/p3"));
  EXPECT_FALSE(files.detect("/other"));
}

TEST(TorchLegacy, RealFilesReadByValue) {
  MemoryFiles files;
  files.put("/legacy.pt", golden("torch/legacy.pt"));
  const auto reader = files.open("/legacy.pt");
  EXPECT_EQ(reader->catalog().tensors.size(), 1U);
  EXPECT_EQ(reader->catalog().warnings, std::vector<std::string>{});
}

TEST(TorchLegacy, ElementsAreLittleEndianWhateverTheMachineWas) {
  MemoryFiles files;
  const auto reader = open(files, kMagic + kProtocol + machine(false) + kObject + kTail);
  EXPECT_THAT(values<float>(*reader, "a"), ElementsAre(4, 5));
}

TEST(TorchLegacy, StorageViewsMoveTheOffset) {
  const std::string view = "(" + text_op("7") + "K\x01K\x02t";
  const std::string object = "\x80\x02" + tensor({.key = "22", .count = 4, .view = view, .numel = 1, .first = 1}) + ".";
  MemoryFiles files;
  const auto reader = open(files, kHead + object + keys({"22"}) + floats({1, 2, 3, 4}));
  EXPECT_THAT(values<float>(*reader, ""), ElementsAre(3));
}

TEST(TorchLegacy, Version1TensorsAndUntypedStorages) {
  const std::string old = tensor({.key = "1", .count = 2, .numel = 2, .function = "_rebuild_tensor", .more = ""});
  const std::string recent = tensor({.key = "2",
                                     .count = 4,
                                     .cls = "torch.storage\nUntypedStorage\n",
                                     .numel = 2,
                                     .function = "_rebuild_tensor_v3",
                                     .more = "\x89" + kHooks + "ctorch\nuint16\n"});
  const std::string object = "\x80\x02}(" + text_op("a") + old + text_op("b") + recent + "u.";
  MemoryFiles files;
  const auto reader = open(files, kHead + object + keys({"1", "2"}) + floats({1, 2}) + int64(4) + "\x01\x00\x02\x01"s);
  EXPECT_THAT(values<float>(*reader, "a"), ElementsAre(1, 2));
  EXPECT_THAT(values<std::uint16_t>(*reader, "b"), ElementsAre(1, 258));
}

TEST(TorchLegacy, OldParametersAreTensors) {
  const std::string data = tensor({.key = "1", .count = 2, .numel = 2, .function = "_rebuild_tensor", .more = ""});
  const std::string object = "\x80\x02}(" + text_op("p") + "ctorch.nn.parameter\nParameter\n" + data + "\x85R\x88\x89" +
                             kHooks + "\x87" + "b" + text_op("v") + "ctorch.autograd.variable\nVariable\n" + data +
                             "\x85R\x89\x89" + kHooks + "\x87" + "bu.";
  MemoryFiles files;
  const auto reader = open(files, kHead + object + keys({"1"}) + floats({1, 2}));
  EXPECT_THAT(values<float>(*reader, "p"), ElementsAre(1, 2));
  EXPECT_TRUE(testing::stored_of(reader->catalog(), "p").requires_grad);
  EXPECT_FALSE(testing::stored_of(reader->catalog(), "v").requires_grad);
  EXPECT_TRUE(find_key(*reader->catalog().root, "p")->is_call_of("torch._utils", "_rebuild_parameter"));
}

// torch.save(model): the class is in a separate persistent id.
const std::string kWholeModule = "\x80\x02}(" + text_op("net") + "(" + text_op("module") + "c__main__\nNet\n" +
                                 text_op("net.py") + text_op("class Net") + "tQ)\x81}(" + text_op("w") +
                                 tensor({.key = "1", .count = 2, .numel = 2}) + "ub" + text_op("t") +
                                 tensor({.key = "1", .count = 2, .numel = 2}) + "u.";

TEST(TorchLegacy, ClassesOfModulesAreRefusedByName) {
  const Error error = error_of(kHead + kWholeModule + keys({"1"}) + floats({1, 2}));
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kForbiddenGlobal);
  EXPECT_THAT(error.what(), HasSubstr("__main__.Net"));
  EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kOpaqueGlobals}));
}

TEST(TorchLegacy, ClassesOfModulesMayBeOpaque) {
  MemoryFiles files;
  OpenOptions options;
  options.opaque_globals = true;
  const auto reader = open(files, kHead + kWholeModule + keys({"1"}) + floats({1, 2}), options);
  EXPECT_THAT(values<float>(*reader, "t"), ElementsAre(1, 2));
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
  EXPECT_TRUE(pickle::is_foreign_holder(*reader->catalog().objects[0].value));
  EXPECT_EQ(type_name(*reader->catalog().objects[0].value), "__main__.Net");
}

struct Damage {
  const char* name;
  std::string bytes;
  ErrorCode code;
  const char* words;
  std::optional<FindingKind> kind;
};

class TorchLegacyDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(TorchLegacyDamage, IsRefusedByName) {
  const Error error = error_of(GetParam().bytes);
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
  EXPECT_EQ(error.kind(), GetParam().kind);
  EXPECT_FALSE(error.file().empty());
}

const Damage kDamage[] = {
    {"protocol", kMagic + "\x80\x02M\xea\x03." + machine(true) + kObject + kTail, ErrorCode::kUnsupported,
     "whose protocol is not 1001", std::nullopt},
    {"machine", kMagic + kProtocol + "\x80\x02K\x01." + kObject + kTail, ErrorCode::kCorruption, "is not a dict",
     FindingKind::kBadHeader},
    {"no_keys", kHead + kObject, ErrorCode::kCorruption, "the file ends inside the pickle", FindingKind::kTruncated},
    {"keys_no_list", kHead + kObject + "\x80\x02}.", ErrorCode::kCorruption, "keys are not a list",
     FindingKind::kBadHeader},
    {"unknown_key", kHead + kObject + keys({"11", "33"}) + floats({1, 2, 3}) + floats({4, 5}), ErrorCode::kCorruption,
     "'33' belongs to no tensor", FindingKind::kBadHeader},
    {"key_twice", kHead + kObject + keys({"11", "11"}) + floats({1, 2, 3}) + floats({1, 2, 3}), ErrorCode::kCorruption,
     "'11' appears twice", FindingKind::kBadHeader},
    {"key_missing", kHead + kObject + keys({"11"}) + floats({1, 2, 3}), ErrorCode::kCorruption, "data/22 is missing",
     FindingKind::kMissingFile},
    {"another_count", kHead + kObject + keys({"11", "22"}) + floats({1, 2}) + floats({4, 5, 6}), ErrorCode::kCorruption,
     "'11' does not have the size", FindingKind::kShapeMismatch},
    {"negative_count", kHead + kObject + keys({"11", "22"}) + int64(-3), ErrorCode::kCorruption,
     "'11' does not have the size", FindingKind::kShapeMismatch},
    {"storage_cut", (kHead + kObject + kTail).substr(0, (kHead + kObject + kTail).size() - 1), ErrorCode::kCorruption,
     "'22' is truncated", FindingKind::kTruncated},
    {"count_cut", kHead + kObject + keys({"11", "22"}) + "\0\0\0"s, ErrorCode::kCorruption, "past the end",
     FindingKind::kTruncated},
    {"appended", kHead + kObject + kTail + "x", ErrorCode::kCorruption, "1 bytes follow the last storage",
     FindingKind::kBadHeader},
    {"two_sizes",
     kHead + "\x80\x02](" + tensor({.key = "1", .count = 2, .numel = 2}) +
         tensor({.key = "1", .count = 3, .numel = 3}) + "e." + keys({"1"}) + floats({1, 2}),
     ErrorCode::kCorruption, "different sizes of storage 1", FindingKind::kShapeMismatch},
    {"huge_string", kHead + "\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"s, ErrorCode::kCorruption,
     "the file ends inside the pickle", FindingKind::kTruncated},
    {"no_opcode", kHead + "\x80\x02\xff.", ErrorCode::kCorruption, "is not an opcode", FindingKind::kBadPickle},
};
INSTANTIATE_TEST_SUITE_P(Each, TorchLegacyDamage, ::testing::ValuesIn(kDamage),
                         [](const auto& damage) { return damage.param.name; });

TEST(TorchLegacy, TruncationAnywhereIsCorruption) {
  const std::string bytes = kHead + kObject + kTail;
  for (std::size_t size = kMagic.size(); size < bytes.size(); ++size) {
    EXPECT_EQ(error_of(bytes.substr(0, size)).code(), ErrorCode::kCorruption) << size;
  }
}

TEST(TorchLegacy, FoldersMayHoldThem) {
  MemoryFiles files;
  files.put("/hf/one.bin", kHead + kObject + kTail);
  files.put("/hf/other.bin", golden("torch/bare.pt"));
  files.put("/hf/pytorch_model.bin.index.json", R"({"weight_map": {"a": "one.bin", "b": "one.bin"}})");
  const auto reader = files.open("/hf");
  EXPECT_THAT(values<float>(*reader, "a"), ElementsAre(4, 5));
}

TEST(PickleScan, FindsTheEndOfEachOpcodesArgument) {
  const std::string pickles[] = {"\x80\x02N.",
                                 "\x80\x02(K.M..J....G........t.",
                                 "\x80\x04\x8c\x02..\x8d\x01\0\0\0\0\0\0\0.."s,
                                 "\x80\x02"
                                 "cbuiltins.\nset.\n.",
                                 "\x80\x02I1.\n.",
                                 "\x80\x02\x8a\x02...",
                                 "\x80\x05\x96\x02\0\0\0\0\0\0\0..."s};
  for (const std::string& pickle : pickles) {
    const BytesFile file("skipped" + pickle + "and more");
    EXPECT_EQ(pickle::scan(file, 7), static_cast<std::int64_t>(pickle.size())) << pickle;
  }
}

TEST(PickleScan, StepsOverLargeStringsWithoutReadingThem) {
  const std::string text(1 << 20, '.');
  const std::int64_t size = 1 << 20;
  const BytesFile file("\x80\x04\x8e"s + std::string(reinterpret_cast<const char*>(&size), 8) + text + ".");
  EXPECT_EQ(pickle::scan(file, 0), 3 + 8 + size + 1);
  EXPECT_LE(file.reads(), 2);
}

}  // namespace
}  // namespace shard
