// Tensors that are not stored plainly, or are inside other calls, read by value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/torch/saved_files.h"
#include "formats/torch/tensor_pickle.h"
#include "tests/formats/torch_files.h"

namespace shard {
namespace {

using namespace std::string_literals;
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
using testing::values;

std::unique_ptr<Reader> open_golden(MemoryFiles& files, const std::string& name) {
  files.put("/" + name, golden("torch/" + name));
  return files.open("/" + name);
}

TEST(TorchValues, ConjAndNegViewsAreResolved) {
  MemoryFiles files;
  const auto reader = open_golden(files, "conj.pt");
  EXPECT_THAT(values<float>(*reader, "plain"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values<float>(*reader, "conj"), ElementsAre(1, -2, 3, -4));
  EXPECT_THAT(values<float>(*reader, "neg"), ElementsAre(0, -1));
  EXPECT_FALSE(storage_of(reader->catalog(), "conj").plain);
  EXPECT_TRUE(storage_of(reader->catalog(), "plain").plain);
}

TEST(TorchValues, ConjViewsAndTheirBaseAreNoAliases) {
  MemoryFiles files;
  const auto reader = open_golden(files, "conj.pt");
  EXPECT_NE(stored_of(reader->catalog(), "conj").storage, stored_of(reader->catalog(), "plain").storage);
  EXPECT_EQ(reader->catalog().find("plain")->alias_of, kNoIndex);
}

TEST(TorchValues, ResolvedViewsAreAWarning) {
  MemoryFiles files;
  EXPECT_THAT(open_golden(files, "conj.pt")->catalog().warnings,
              ElementsAre("conj.pt: 2 conjugated or negated views are read as their values: 'conj', "
                          "'neg'"));
}

TEST(TorchValues, DeflatedRecordsAreInflated) {
  MemoryFiles files;
  const auto reader = open_golden(files, "deflated.pt");
  const auto plain = open_golden(files, "state.pt");
  for (const Tensor& tensor : plain->catalog().tensors) {
    const std::string name(tensor.name);
    EXPECT_EQ(testing::elements(*reader, name), testing::elements(*plain, name)) << name;
  }
  EXPECT_FALSE(storage_of(reader->catalog(), "base").plain);
  EXPECT_EQ(stored_of(reader->catalog(), "row").storage, stored_of(reader->catalog(), "base").storage);
}

TEST(TorchValues, OtherCompressionIsListedAndRefusedByName) {
  std::string bytes = golden("torch/deflated.pt");
  for (const auto& [signature, at] : {std::pair("PK\3\4", 8U), std::pair("PK\1\2", 10U)}) {
    for (std::size_t i = bytes.find(signature); i != std::string::npos; i = bytes.find(signature, i + 1)) {
      const std::size_t name = i + (at == 8U ? 30 : 46);
      if (bytes.substr(name, 12) == "state/data/1") bytes[i + at] = 12;  // bzip2
    }
  }
  MemoryFiles files;
  files.put("/packed.pt", bytes);
  const auto reader = files.open("/packed.pt");
  EXPECT_FALSE(storage_of(located(*reader), "base").plain);
  try {
    testing::elements(*reader, "base");
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("data/1 is compressed in a way"));
  }
}

TEST(TorchValues, BigEndianStoragesAreSwappedByTheirDtype) {
  std::vector<NamedRecord> records = unpack(golden("torch/dtypes.pt"));
  for (NamedRecord& record : records) {
    if (record.name == "byteorder") record.content = "big";
  }
  MemoryFiles files;
  files.put("/big.pt", pack(records));
  const auto reader = files.open("/big.pt");
  EXPECT_EQ(testing::elements(*reader, "int8"), "\0\1"s);
  EXPECT_EQ(testing::elements(*reader, "float8_e5m2"), "\0\1"s);
  EXPECT_EQ(testing::elements(*reader, "bfloat16"), "\1\0\3\2"s);
  EXPECT_EQ(testing::elements(*reader, "uint16"), "\1\0\3\2"s);  // An untyped storage.
  EXPECT_EQ(testing::elements(*reader, "float32"), "\3\2\1\0\7\6\5\4"s);
  EXPECT_EQ(testing::elements(*reader, "complex32"), "\1\0\3\2\5\4\7\6"s);  // Each half.
  EXPECT_EQ(testing::elements(*reader, "complex64").substr(0, 8), "\3\2\1\0\7\6\5\4"s);
  EXPECT_EQ(testing::elements(*reader, "int64").substr(0, 8), "\7\6\5\4\3\2\1\0"s);
  EXPECT_TRUE(storage_of(reader->catalog(), "int8").plain);
  EXPECT_FALSE(storage_of(reader->catalog(), "int16").plain);
}

/// The elements of all tensors by name, or nothing if the file is refused.
std::map<std::string, std::string> elements_or_nothing(const std::string& content) try {
  MemoryFiles files;
  files.put("/one.pt", content);
  const auto reader = files.open("/one.pt");
  std::map<std::string, std::string> all;
  for (const Tensor& tensor : reader->catalog().tensors) {
    const std::string name(tensor.name);
    all[name] = testing::elements(*reader, name);
  }
  return all;
} catch (const Error&) {
  return {};
}

TEST(TorchValues, RecordsThatAreDecodedAreHeldAgainstTheirChecksums) {
  for (const char* name : {"big_endian.pt", "conj.pt"}) {
    std::string content = golden(std::string("torch/") + name);
    const std::map<std::string, std::string> expected = elements_or_nothing(content);
    ASSERT_FALSE(expected.empty());
    const std::size_t directory = content.find("PK\1\2");  // Fields that only verify compares with the records.
    for (std::size_t i = 0; i < directory; ++i) {
      content[i] = static_cast<char>(content[i] ^ 1);
      const std::map<std::string, std::string> found = elements_or_nothing(content);
      EXPECT_TRUE(found.empty() || found == expected) << name << " byte " << i;
      content[i] = static_cast<char>(content[i] ^ 1);
    }
  }
}

TEST(TorchValues, BigEndianConjViewsStack) {
  std::vector<NamedRecord> records = unpack(golden("torch/conj.pt"));
  for (NamedRecord& record : records) {
    if (record.name == "byteorder") record.content = "big";
    if (!record.name.starts_with("data/")) continue;
    for (std::size_t i = 0; i + 4 <= record.content.size(); i += 4) {
      std::reverse(record.content.begin() + static_cast<std::ptrdiff_t>(i),
                   record.content.begin() + static_cast<std::ptrdiff_t>(i + 4));
    }
  }
  MemoryFiles files;
  files.put("/big.pt", pack(records));
  const auto reader = files.open("/big.pt");
  EXPECT_THAT(values<float>(*reader, "plain"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values<float>(*reader, "conj"), ElementsAre(1, -2, 3, -4));
}

// Pickles made by hand.

std::string text_op(const std::string& text) {  // BINUNICODE
  return "X" + std::string(1, static_cast<char>(text.size())) + "\0\0\0"s + text;
}
const std::string kHooks = "ccollections\nOrderedDict\n)R";
const std::string kStorage =
    "(" + text_op("storage") + "ctorch\nFloatStorage\n" + text_op("0") + text_op("cpu") + "K\x02tQ";
const std::string kArguments = "(" + kStorage + "K\0K\x02\x85K\x01\x85\x89"s + kHooks + "t";
const std::string kTensor = "ctorch._utils\n_rebuild_tensor_v2\n" + kArguments + "R";
const std::string kBytes = "\0\0\x80\x3f\0\0\0\x40"s;  // 1, 2

std::unique_ptr<Reader> open_value(MemoryFiles& files, const std::string& value, const OpenOptions& options = {}) {
  const std::string data_pkl = "\x80\x02}" + text_op("x") + value + "s.";
  files.put("/made.pt", pack({{"data.pkl", data_pkl}, {"data/0", kBytes}, {"version", "3\n"}}));
  return files.open("/made.pt", options);
}

std::string type_call(const std::string& cls, const std::string& state) {
  return "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nc" + cls + kArguments + state +
         "tR";
}

TEST(TorchWrapped, TensorsWithAttributesAreReadByValue) {
  MemoryFiles files;
  const auto reader = open_value(files, type_call("torch\nTensor\n", "}" + text_op("tag") + "K\x07s"));
  EXPECT_THAT(values<float>(*reader, "x"), ElementsAre(1, 2));
  EXPECT_THAT(reader->catalog().warnings,
              ElementsAre("made.pt: 1 tensor is read without the attributes of its Python object: 'x'"));
  EXPECT_EQ(find_key(*reader->catalog().root, "x")->kind, ValueKind::kTensor);
}

TEST(TorchWrapped, ParametersAreReadWithoutAttributesThatCannotBeWritten) {
  OpenOptions options;
  options.opaque_globals = true;
  for (const std::string& attribute : {kTensor, std::string("cbuiltins\nmax\n")}) {
    MemoryFiles files;
    const std::string state = "}" + text_op("main_grad") + attribute + "s";
    const auto reader = open_value(
        files, "ctorch._utils\n_rebuild_parameter_with_state\n(" + kTensor + "\x88" + kHooks + state + "tR", options);
    EXPECT_THAT(values<float>(*reader, "x"), ElementsAre(1, 2));
    EXPECT_THAT(reader->catalog().warnings,
                ElementsAre("made.pt: 1 tensor is read without the attributes of its Python object: 'x'"));
    EXPECT_TRUE(find_key(*reader->catalog().root, "x")->is_call_of("torch._utils", "_rebuild_parameter"));
  }
}

TEST(TorchWrapped, TensorsInAttributesOfContainersAreAWarning) {
  MemoryFiles files;
  const std::string dict =
      "ccollections\nOrderedDict\n)R(" + text_op("w") + "K\x01u}" + text_op("more") + "(" + kTensor + "tsb";
  const auto reader = open_value(files, dict);
  EXPECT_TRUE(reader->catalog().tensors.empty());
  EXPECT_THAT(reader->catalog().warnings,
              ElementsAre("made.pt: did not list tensors stored as attributes of objects: 'x'"));
}

TEST(TorchWrapped, StateDictsOfPython2HaveTheirTensors) {
  MemoryFiles files;
  const auto reader = open_value(files, "ccollections\nOrderedDict\n](](U\x01w" + kTensor + "ee\x85R");
  EXPECT_THAT(values<float>(*reader, "x.w"), ElementsAre(1, 2));
}

TEST(TorchWrapped, BuffersAreTensors) {
  MemoryFiles files;
  const std::string state = "}(" + text_op("persistent") + "\x88" + text_op("_is_buffer") + "\x88u";
  const auto reader = open_value(files, type_call("torch.nn.parameter\nBuffer\n", state));
  EXPECT_THAT(values<float>(*reader, "x"), ElementsAre(1, 2));
  EXPECT_TRUE(reader->catalog().warnings.empty());
}

TEST(TorchObjects, TensorsInKeywordArgumentsAreHidden) {
  MemoryFiles files;
  const auto reader = open_value(files, "cargparse\nNamespace\n)}" + text_op("t") + kTensor + "s\x92");
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
  EXPECT_THAT(reader->catalog().warnings,
              ElementsAre(HasSubstr("did not list tensors stored as attributes of objects: 'x'")));
}

TEST(TorchWrapped, OtherSubclassesStayObjects) {
  MemoryFiles files;
  const auto reader = open_value(files, type_call("torch.nn.parameter\nParameter\n", "}"));
  EXPECT_TRUE(reader->catalog().tensors.empty());
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
}

std::string device_call(const std::string& function, const std::string& data, const std::string& dtype) {
  return "ctorch._utils\n" + function + "\n(" + data + "ctorch\n" + dtype + "\n" + text_op("xla:0") + "\x88tR";
}

TEST(TorchWrapped, DeviceTensorsFromCpuTensors) {
  MemoryFiles files;
  const auto reader = open_value(files, device_call("_rebuild_device_tensor_from_cpu_tensor", kTensor, "float32"));
  EXPECT_THAT(values<float>(*reader, "x"), ElementsAre(1, 2));
  EXPECT_TRUE(stored_of(reader->catalog(), "x").requires_grad);
  EXPECT_THAT(reader->catalog().warnings,
              ElementsAre(HasSubstr("device without storages is read as a cpu tensor: 'x'")));
}

TEST(TorchWrapped, DeviceTensorsThatAreCastStayObjects) {
  MemoryFiles files;
  const auto reader = open_value(files, device_call("_rebuild_device_tensor_from_cpu_tensor", kTensor, "float16"));
  EXPECT_TRUE(reader->catalog().tensors.empty());
}

std::string numpy_array(const std::string& code, const std::string& order, const std::string& bytes,
                        const std::string& core = "core", const std::string& fortran = "\x89") {
  return "cnumpy." + core + ".multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85"s + "c_codecs\nencode\n(" +
         text_op("b") + text_op("latin1") + "tRtR(K\x01K\x01K\x02\x86" + "cnumpy\ndtype\n(" + text_op(code) +
         "\x89\x88tR(K\x03" + text_op(order) + "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s + fortran +
         "c_codecs\nencode\n(" + text_op(bytes) + text_op("latin1") + "tRtb";
}

TEST(TorchWrapped, DeviceTensorsFromNumpyLieInThePickle) {
  for (const char* function : {"_rebuild_device_tensor_from_numpy", "_rebuild_xla_tensor"}) {
    MemoryFiles files;
    const auto reader = open_value(files, device_call(function, numpy_array("i2", "<", "\1\0\2\0"s), "int16"));
    EXPECT_THAT(values<std::int16_t>(*reader, "x"), ElementsAre(1, 2));
    EXPECT_FALSE(storage_of(located(*reader), "x").plain);
  }
}

TEST(TorchWrapped, BigEndianNumpyIsSwapped) {
  MemoryFiles files;
  const auto reader =
      open_value(files, device_call("_rebuild_xla_tensor", numpy_array("i2", ">", "\0\1\0\2"s), "int16"));
  EXPECT_THAT(values<std::int16_t>(*reader, "x"), ElementsAre(1, 2));
}

TEST(TorchWrapped, Bfloat16ThatWasWidenedForNumpyIsNarrowed) {
  MemoryFiles files;
  const std::string widened = "\0\0\x40\x3f\0\0\x20\x40"s;  // 0.75, 2.5
  const auto reader =
      open_value(files, device_call("_rebuild_xla_tensor", numpy_array("f4", "<", widened), "bfloat16"));
  EXPECT_EQ(testing::elements(*reader, "x"), "\x40\x3f\x20\x40");
}

TEST(TorchWrapped, NumpyOfAnotherSizeIsRefused) {
  MemoryFiles files;
  try {
    open_value(files, device_call("_rebuild_xla_tensor", numpy_array("i2", "<", "\1\0"s), "int16"));
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.tensor(), "x");
  }
}

TEST(TorchNumpy, ArraysAreObjectsUnderBothModuleNames) {
  for (const char* core : {"core", "_core"}) {
    MemoryFiles files;
    const auto reader = open_value(files, numpy_array("i2", "<", "\1\0\2\0"s, core));
    ASSERT_EQ(reader->catalog().objects.size(), 1U);
    EXPECT_TRUE(reader->catalog().tensors.empty());
  }
}

// SavedFiles, compared with the reader.

TEST(SavedFiles, IntegersOfAViewInRowMajorOrder) {
  MemoryFiles files;
  files.put("/bare.pt", golden("torch/bare.pt"));  // int16: 0, 1, 2, 3
  Catalog catalog;
  torch_save::SavedFiles saved(files.fs(), catalog, {});
  const Value* root = saved.add("/bare.pt");
  torch_save::TensorView view = *torch_save::as_tensor(*catalog.arena, *root);
  EXPECT_THAT(saved.integers(0, view, 4), ElementsAre(0, 1, 2, 3));
  const std::int64_t shape[] = {2, 2}, strides[] = {1, 2};
  view.shape = catalog.arena->dims(shape);
  view.strides = catalog.arena->dims(strides);
  EXPECT_THAT(saved.integers(0, view, 4), ElementsAre(0, 2, 1, 3));
  EXPECT_TRUE(catalog.storages.empty());
}

TEST(SavedFiles, MoreIntegersThanTheLimitAreRefused) {
  MemoryFiles files;
  files.put("/bare.pt", golden("torch/bare.pt"));
  Catalog catalog;
  torch_save::SavedFiles saved(files.fs(), catalog, {});
  const Value* root = saved.add("/bare.pt");
  const torch_save::TensorView view = *torch_save::as_tensor(*catalog.arena, *root);
  EXPECT_THROW(saved.integers(0, view, 3), Error);
}

TEST(SavedFiles, EveryKindOfFileHasAName) {
  MemoryFiles files;
  files.put("/bare.pt", golden("torch/bare.pt"));
  files.put("/legacy.pt", golden("torch/legacy.pt"));
  Catalog catalog;
  torch_save::SavedFiles saved(files.fs(), catalog, {.folder = "/", .opaque_globals = false});
  saved.add("bare.pt");
  saved.add("legacy.pt");
  EXPECT_EQ(saved.version(0), "zip, torch>=2.7");
  EXPECT_EQ(saved.version(1), "legacy, torch<1.6");
  EXPECT_EQ(catalog.files[1].path, "legacy.pt");
}

// Unknown classes.

const std::string kConfig = "cmylib.config\nConfig\n)\x81}" + text_op("w") + kTensor + "sb";

TEST(TorchUnknownGlobals, AreRefusedWithTheWayOut) {
  MemoryFiles files;
  try {
    open_value(files, kConfig);
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.kind(), FindingKind::kForbiddenGlobal);
    EXPECT_EQ(error.found(), "mylib.config.Config");
    EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kOpaqueGlobals}));
  }
}

TEST(TorchUnknownGlobals, BecomeOpaqueAndAllElseIsRead) {
  MemoryFiles files;
  OpenOptions options;
  options.opaque_globals = true;
  const auto reader = open_value(files, kConfig + "s" + text_op("y") + kTensor, options);
  EXPECT_THAT(values<float>(*reader, "y"), ElementsAre(1, 2));
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
  EXPECT_EQ(reader->catalog().objects[0].name, "x");
  EXPECT_TRUE(pickle::is_foreign_holder(*reader->catalog().objects[0].value));
  EXPECT_EQ(type_name(*reader->catalog().objects[0].value), "mylib.config.Config");
}

TEST(TorchUnknownGlobals, TensorsOfTheirClassesAreListedAsSubclasses) {
  MemoryFiles files;
  const auto reader = open_value(files, type_call("mylib.tensors\nTagged\n", "}"));
  EXPECT_TRUE(reader->catalog().tensors.empty());
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
  EXPECT_EQ(torch_save::tensor_subclass(*reader->catalog().objects[0].value), "mylib.tensors.Tagged");
  EXPECT_EQ(torch_save::unsupported_tensor_kind(*reader->catalog().objects[0].value), "subclass");
}

}  // namespace
}  // namespace shard
