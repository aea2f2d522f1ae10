#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/formats/torch_files.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using testing::located;
using testing::MemoryFiles;
using testing::read_content;
using testing::storage_of;
using testing::stored_of;
using testing::unpack;
using testing::write_checkpoint;

class TorchWriter : public ::testing::Test {
 protected:
  TorchWriter() { files_.fs().make_folder("/out"); }

  // Copies a golden file through the writer and opens the result.
  std::unique_ptr<Reader> copy(const std::string& name, const std::string& destination, Layout layout = WholeLayout{}) {
    files_.put("/" + name, golden("torch/" + name));
    source_ = files_.open("/" + name);
    result_ = write_checkpoint(
        files_.fs(), *source_,
        {.format = "torch", .destination = destination, .layout = layout, .single_file = destination.ends_with(".pt")});
    return files_.open(destination);
  }
  void expect_same(const std::string& name) {
    const std::unique_ptr<Reader> copied = copy(name, "/out/" + name);
    EXPECT_EQ(read_content(*copied), read_content(*source_));
    const Catalog &a = source_->catalog(), &b = copied->catalog();
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
      const std::string tensor(a.tensors[i].name);
      EXPECT_EQ(stored_of(a, tensor).strides, stored_of(b, tensor).strides) << tensor;
      EXPECT_EQ(stored_of(a, tensor).requires_grad, stored_of(b, tensor).requires_grad) << tensor;
      EXPECT_EQ(a.tensors[i].alias_of, b.tensors[i].alias_of) << tensor;
    }
    ASSERT_EQ(a.objects.size(), b.objects.size());
    for (std::size_t i = 0; i < a.objects.size(); ++i) {
      EXPECT_EQ(a.objects[i].name, b.objects[i].name);
      EXPECT_EQ(type_name(*a.objects[i].value), type_name(*b.objects[i].value)) << a.objects[i].name;
    }
  }
  std::string record(const std::string& path, const std::string& name) {
    for (const testing::NamedRecord& each : unpack(files_.content(path))) {
      if (each.name == name) return each.content;
    }
    return "absent";
  }

  MemoryFiles files_;
  std::unique_ptr<Reader> source_;
  CopyResult result_;
};

TEST_F(TorchWriter, AStateDictComesThrough) { expect_same("state.pt"); }
TEST_F(TorchWriter, NestedContainersAndObjectsComeThrough) { expect_same("nested.pt"); }
TEST_F(TorchWriter, EveryDtypeComesThrough) { expect_same("dtypes.pt"); }
TEST_F(TorchWriter, ParametersComeThrough) { expect_same("parameter.pt"); }
TEST_F(TorchWriter, ABareTensorComesThrough) { expect_same("bare.pt"); }
TEST_F(TorchWriter, OneObjectUnderSeveralNamesComesThrough) { expect_same("same_object.pt"); }
TEST_F(TorchWriter, ManyTensorsComeThrough) { expect_same("many.pt"); }

TEST_F(TorchWriter, WritesTheRecordsOfTorch) {
  copy("state.pt", "/out/copy.pt");
  std::vector<std::string> found;
  for (const testing::NamedRecord& each : unpack(files_.content("/out/copy.pt"))) found.push_back(each.name);
  EXPECT_THAT(found, ElementsAre("data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0", "data/1",
                                 "data/2", "data/3", "version", ".data/serialization_id"));
  EXPECT_EQ(record("/out/copy.pt", "byteorder"), "little");
  EXPECT_EQ(record("/out/copy.pt", "version"), "3\n");
}

TEST_F(TorchWriter, TheTopFolderIsTheNameOfTheFile) {
  copy("state.pt", "/out/my.model.pt");
  EXPECT_EQ(files_.content("/out/my.model.pt").substr(30, 17), "my.model/data.pkl");
}

TEST_F(TorchWriter, NamesThatTorchOpensAsAStreamGetTheFolderOfOne) {
  copy("state.pt", "/out/mod\xc3\xa8le.pt");
  EXPECT_EQ(files_.content("/out/mod\xc3\xa8le.pt").substr(30, 16), "archive/data.pkl");
}

TEST_F(TorchWriter, EqualContentGivesEqualBytes) {
  copy("nested.pt", "/out/a.pt");
  const std::string once = files_.content("/out/a.pt");
  files_.fs().remove_all("/out/a.pt");
  copy("nested.pt", "/out/a.pt");
  EXPECT_TRUE(files_.content("/out/a.pt") == once);
}

TEST_F(TorchWriter, StoragesBeginAtMultiplesOf64) {
  const std::unique_ptr<Reader> copied = copy("many.pt", "/out/many.pt");
  for (const Storage& storage : located(*copied).storages) EXPECT_EQ(storage.offset % 64, 0);
}

TEST_F(TorchWriter, ModuleMetadataComesThrough) {
  const std::unique_ptr<Reader> copied = copy("state.pt", "/out/state.pt");
  ASSERT_NE(copied->catalog().root->extra(), nullptr);
  EXPECT_NE(find_key(*copied->catalog().root->state(), "_metadata"), nullptr);
}

TEST_F(TorchWriter, ViewsThatShareAStorageStillDo) {
  const std::unique_ptr<Reader> copied = copy("state.pt", "/out/state.pt");
  EXPECT_EQ(stored_of(copied->catalog(), "row").storage, stored_of(copied->catalog(), "base").storage);
  EXPECT_EQ(storage_of(copied->catalog(), "transposed").bytes, 96);
}

TEST_F(TorchWriter, OneFileAloneInAFolderHasNoIndex) {
  const std::unique_ptr<Reader> copied = copy("state.pt", "/out/folder");
  EXPECT_EQ(files_.fs().list("/out/folder"), std::vector<std::string>{"pytorch_model.bin"});
  EXPECT_EQ(read_content(*copied), read_content(*source_));
}

TEST_F(TorchWriter, SeveralFilesHaveAnIndex) {
  const std::unique_ptr<Reader> copied = copy("many.pt", "/out/folder", ShardsLayout{3});
  EXPECT_THAT(files_.fs().list("/out/folder"),
              ElementsAre("pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
                          "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json"));
  EXPECT_THAT(files_.content("/out/folder/pytorch_model.bin.index.json"), HasSubstr("\"total_size\": 4800"));
  EXPECT_EQ(read_content(*copied), read_content(*source_));
}

TEST_F(TorchWriter, ObjectsOfSeveralFilesAreInTheFirst) {
  const std::unique_ptr<Reader> copied = copy("nested.pt", "/out/folder", ShardsLayout{2});
  EXPECT_EQ(copied->catalog().objects.size(), source_->catalog().objects.size());
  EXPECT_THAT(result_.warnings, ::testing::Contains(HasSubstr("first file")));
  EXPECT_THAT(result_.warnings, ::testing::Contains(HasSubstr("flat")));
}

class TorchWriterRefuses : public TorchWriter,
                           public ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(TorchWriterRefuses, WhatItCannotHoldByName) {
  try {
    copy(GetParam().first, "/out/copy.pt");
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    EXPECT_EQ(error.tensor(), GetParam().second);
  }
  EXPECT_TRUE(files_.fs().list("/out").empty());
}
INSTANTIATE_TEST_SUITE_P(Each, TorchWriterRefuses,
                         ::testing::Values(std::pair("sparse.pt", "meta"), std::pair("bare_storage.pt", "s"),
                                           std::pair("namespace.pt", "args")));

TEST_F(TorchWriter, DecodedStoragesKeepTheirSharing) {
  const std::unique_ptr<Reader> copied = copy("deflated.pt", "/out/copy.pt");
  const Catalog& catalog = located(*copied);
  EXPECT_TRUE(storage_of(catalog, "base").plain);
  EXPECT_EQ(stored_of(catalog, "row").storage, stored_of(catalog, "base").storage);
  EXPECT_EQ(catalog.find("lm_head.weight")->alias_of, 1U);
  EXPECT_EQ(read_content(*copied), read_content(*source_));
}

TEST_F(TorchWriter, ConjAndNegViewsAreWrittenAsTheirValues) {
  const std::unique_ptr<Reader> copied = copy("conj.pt", "/out/copy.pt");
  EXPECT_THAT(testing::values<float>(*copied, "conj"), ElementsAre(1, -2, 3, -4));
  EXPECT_THAT(testing::values<float>(*copied, "plain"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(testing::values<float>(*copied, "neg"), ElementsAre(0, -1));
  EXPECT_TRUE(storage_of(located(*copied), "conj").plain);
  EXPECT_THAT(result_.warnings, ::testing::Contains("conj.pt: 2 conjugated or negated views are read as their values: "
                                                    "'conj', 'neg'"));
}

TEST_F(TorchWriter, ATensorWithTheEmptyNameStandsInADictOfSeveralFiles) {
  const testing::Content content{{"", {DType::kUint8, {2}, {std::byte{1}, std::byte{2}}}},
                                 {"b", {DType::kUint8, {2}, {std::byte{3}, std::byte{4}}}}};
  write_checkpoint(files_.fs(), *testing::content_reader(content),
                   {.format = "torch", .destination = "/out/model", .layout = ShardsLayout{2}});
  EXPECT_EQ(read_content(*files_.open("/out/model")), content);
}

}  // namespace
}  // namespace shard
