// Pickles that Python could not have produced, or that no other file can repeat, through every reader of pickles.
#include <gtest/gtest.h>

#include "formats/dcp/item_bytes.h"
#include "formats/dcp/objects.h"
#include "tests/formats/rank_files.h"
#include "tests/formats/torch_files.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using namespace std::string_literals;
using testing::BytesFile;
using testing::MemoryFiles;
using testing::pack;
using testing::RankFolder;

std::string text(const std::string& value) {  // BINUNICODE
  return "X" + std::string(1, static_cast<char>(value.size())) + "\0\0\0"s + value;
}
const std::string kStorage = "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\2tQ";
const std::string kTensor =
    "ctorch._utils\n_rebuild_tensor_v2\n(" + kStorage + "K\0K\2\x85K\1\x85\x89"s + "ccollections\nOrderedDict\n)RtR";

/// A zip that pickles {"x": value}.
std::string file_of(const std::string& value) {
  return pack(
      {{"data.pkl", "\x80\x02}" + text("x") + value + "s."}, {"data/0", std::string(8, 'd')}, {"version", "3\n"}});
}

/// Reads such a file as torch, as a bytes item of dcp and as a rank's file; each must refuse it with that code.
void expect_refused(const std::string& name, const std::string& value, ErrorCode code, const std::string& words) {
  const auto check = [&](const char* reader, const std::function<void()>& read) {
    SCOPED_TRACE(name + " by " + reader);
    test::expect_error(code, words, read);
  };
  check("torch", [&] {
    MemoryFiles files;
    files.put("/made.pt", file_of(value));
    files.open("/made.pt");
  });
  check("dcp", [&] {
    const auto file = std::make_shared<BytesFile>(file_of(value));
    Arena arena;
    const dcp::OpenItem item(std::make_shared<dcp::FetchedFile>(file), {0, file->size()}, 0, arena);
    const dcp::LoadedObject loaded = dcp::load_object(arena, item, {}, {});
    if (loaded.foreign) throw Error(*loaded.foreign);
  });
  check("torch-ranks", [&] {
    RankFolder folder;
    folder.put("rank_0.pt", file_of(value));
    folder.put("rank_1.pt", file_of(value));
    folder.open();
  });
}

TEST(ObjectPickles, PersistentIdsThatAreNotStoragesAreDamage) {
  const ErrorCode bad = ErrorCode::kCorruption;
  expect_refused("a number", "K\1Q", bad, "a persistent id of type int, not a tuple");
  expect_refused("a list", "]Q", bad, "a persistent id of type list, not a tuple");
  expect_refused("an empty tuple", ")Q", bad, "does not begin with its kind");
  expect_refused("a number first", "K\1\x85Q", bad, "does not begin with its kind");
  expect_refused("another kind", text("blob") + "K\1\x86Q", bad, "neither of a storage nor of a module");
  expect_refused("too short", "(" + text("storage") + "ctorch\nFloatStorage\ntQ", bad, "a storage with 2 parts");
  expect_refused("a module without a class", "(" + text("module") + "NNNtQ", bad, "a module with 4 parts");
}

TEST(ObjectPickles, ContainersThatCannotBeKeysAreDamage) {
  const ErrorCode bad = ErrorCode::kCorruption;
  expect_refused("a list", "}]K\1s", bad, "a list cannot be a key");
  expect_refused("a dict", "}}K\1s", bad, "a dict cannot be a key");
  expect_refused("a set", "}\x8fK\1s", bad, "a set cannot be a key");
  expect_refused("a list in a tuple", "}K\1]\x86\x85K\1s", bad, "a list cannot be a key");
  expect_refused("of an OrderedDict", "ccollections\nOrderedDict\n)R]K\1s", bad, "a list cannot be a key");
  expect_refused("of several", "}(K\1K\1]K\2u", bad, "a list cannot be a key");
  expect_refused("of DICT", "(]K\1d", bad, "a list cannot be a key");
  expect_refused("in a set", "\x8f(]\x90", bad, "an element of a set");
  expect_refused("in a frozenset", "(]\x91", bad, "an element of a set");
  expect_refused("in a set of protocol 2", "c__builtin__\nset\n](]e\x85R", bad, "an element of a set");
}

TEST(ObjectPickles, TensorsAsKeysAreNotSupported) {
  const ErrorCode no = ErrorCode::kUnsupported;
  const std::string words = "a value of type dict with tensors as keys";
  expect_refused("a tensor", "}" + kTensor + "K\1s", no, words);
  expect_refused("a storage", "}" + kStorage + "K\1s", no, words);
  expect_refused("two tensors", "}(" + kTensor + "K\1" + kTensor + "K\2u", no, words);
  expect_refused("in a tuple", "}" + kTensor + "K\1\x86K\1s", no, words);
  expect_refused("inside an object", "cargparse\nNamespace\n)R}" + text("d") + "}" + kTensor + "K\1ssb", no, words);
  expect_refused("in a set", "\x8f(" + kTensor + "\x90", no, "a value of type set with tensors as keys");
  expect_refused("of an OrderedDict", "ccollections\nOrderedDict\n)R" + kTensor + "K\1s", no,
                 "a value of type OrderedDict with tensors as keys");
}

TEST(ObjectPickles, OpaqueContainersMayHaveTensorsAsKeys) {
  OpenOptions options;
  options.opaque_globals = true;
  const std::string dict = "}" + kTensor + "K\1s", pair = "}" + kTensor + "K\1\x86K\1s",
                    set = "\x8f(" + kTensor + "\x90", old_set = "c__builtin__\nset\n](" + kTensor + "e\x85R",
                    ordered = "ccollections\nOrderedDict\n)R" + kTensor + "K\1s";
  for (const auto& [value, type] : {std::pair(dict, "dict"), std::pair(pair, "dict"), std::pair(set, "set"),
                                    std::pair(old_set, "set"), std::pair(ordered, "OrderedDict")}) {
    MemoryFiles files;
    files.put("/made.pt", file_of("}(" + text("x") + value + text("w") + kTensor + "u"));
    const std::unique_ptr<Reader> reader = files.open("/made.pt", options);
    ASSERT_EQ(reader->catalog().objects.size(), 1U) << type;
    EXPECT_EQ(type_name(*reader->catalog().objects[0].value), type);
    ASSERT_EQ(reader->catalog().tensors.size(), 1U);
    EXPECT_EQ(reader->catalog().tensors[0].name, "x.w");
  }
}

// torch.save(optimizer): its state is a dict by Parameter, which is dropped with the opaque object.
TEST(ObjectPickles, TensorsAsKeysOfWhatIsDroppedDoNotMatter) {
  const std::string one = "}" + kTensor + "K\1s", two = "}(" + kTensor + "K\1" + kTensor + "K\2u";
  OpenOptions options;
  options.opaque_globals = true;
  for (const std::string& state : {one, two}) {
    MemoryFiles files;
    files.put("/made.pt", file_of("ctorch.optim\nAdam\n)R" + state + "b"));
    EXPECT_EQ(files.open("/made.pt", options)->catalog().objects.size(), 1U);
  }
}

TEST(ObjectPickles, TuplesOfTuplesAreCheckedOnce) {
  std::string key = ")";
  for (int i = 0; i < 60; ++i) key += "q\x01h\x01\x86";  // 2^60 empty tuples, of 60 nodes.
  MemoryFiles files;
  files.put("/made.pt", file_of("}" + key + "K\1s"));
  EXPECT_NO_THROW(files.open("/made.pt")) << "a key is not walked along every path";
}

}  // namespace
}  // namespace shard
