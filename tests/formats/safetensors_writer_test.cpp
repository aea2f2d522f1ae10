#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/safetensors/format.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/box.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::ElementsAre;

class NoChecksums : public Checksums {
 public:
  std::uint32_t crc32_of(std::uint32_t) const override { return 0; }
};

/// A target of whole tensors, by hand.
class Target {
 public:
  explicit Target(std::size_t files = 1) { catalog.files.resize(files); }
  Target& add(const std::string& name, DType dtype, std::vector<std::int64_t> shape, std::int64_t bytes,
              std::uint32_t file = 0) {
    StoredTensor stored;
    std::vector<std::int64_t> strides(shape.size());
    row_major_strides(shape, strides);
    stored.shape = catalog.arena->dims(shape);
    stored.strides = catalog.arena->dims(strides);
    stored.dtype = dtype;
    stored.storage = static_cast<std::uint32_t>(catalog.storages.size());
    catalog.storages.push_back({.bytes = bytes, .file = file});
    CatalogBuilder(catalog).add_tensor(catalog.arena->copy(name), {}, stored);
    return *this;
  }
  Catalog& finished() {
    validate_catalog(catalog);
    return catalog;
  }
  Catalog catalog;
};

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  /// Places and writes; the elements stay zero.
  void write(Catalog& target, const WriteOptions& options = {}) {
    const auto writer = kSafetensorsFormat.make_writer(options);
    writer->place(target);
    for (std::uint32_t i = 0; i < target.files.size(); ++i) {
      const auto file = fs->create("/" + target.files[i].path);
      file->allocate(target.files[i].bytes);
      writer->begin_file(target, i, *file);
      writer->finish_file(target, i, NoChecksums{}, *file);
    }
  }
  std::string content(const std::string& path) const { return test::as_text(state->content(path)); }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

// The output of save_file({'b': zeros(2), 'a': zeros(3, int64), 'é"\n': zeros(())}, metadata={'format': 'pt'}) of
// safetensors 0.8.0.
TEST_F(SafetensorsWriterTest, WritesTheReferencesBytes) {
  Target target;
  target.add("b", DType::kFloat32, {2}, 8).add("a", DType::kInt64, {3}, 24).add("\xc3\xa9\"\n", DType::kFloat32, {}, 4);
  write(target.finished(), {.single_file = true, .base_name = "x.safetensors"});
  using namespace std::string_literals;
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]},"
      "\"\xc3\xa9\\\"\\n\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[32,36]}}";
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(content("/x.safetensors"), static_cast<char>(padded) + "\0\0\0\0\0\0\0"s + header +
                                           std::string(padded - header.size(), ' ') + std::string(36, '\0'));
}

TEST_F(SafetensorsWriterTest, DtypesDescendThenNamesAscend) {
  Target target;
  target.add("a", DType::kBool, {1}, 1)
      .add("b", DType::kUint64, {1}, 8)
      .add("c", DType::kBfloat16, {1}, 2)
      .add("d", DType::kBfloat16, {1}, 2)
      .add("e", DType::kFloat16, {1}, 2);
  Catalog& catalog = target.finished();
  write(catalog);
  std::vector<std::int64_t> places;
  for (const Storage& storage : catalog.storages) places.push_back(storage.offset - catalog.storages[1].offset);
  EXPECT_THAT(places, ElementsAre(14, 0, 8, 10, 12));
}

TEST_F(SafetensorsWriterTest, DataBeginsAtAMultipleOfEight) {
  for (std::size_t length = 1; length < 10; ++length) {
    Target target;
    target.add(std::string(length, 'n'), DType::kUint8, {1}, 1);
    Catalog& catalog = target.finished();
    kSafetensorsFormat.make_writer({})->place(catalog);
    EXPECT_EQ(catalog.storages[0].offset % 8, 0) << length;
  }
}

TEST_F(SafetensorsWriterTest, OneFileOfAFolderIsModelSafetensorsWithoutIndex) {
  Target target;
  target.add("a", DType::kUint8, {1}, 1);
  write(target.finished());
  EXPECT_THAT(state->paths(), ElementsAre("/model.safetensors"));
}

TEST_F(SafetensorsWriterTest, SeveralFilesGetHuggingFacesNamesAndIndex) {
  Target target(2);
  target.add("b", DType::kUint8, {3}, 3, 0)
      .add("a", DType::kFloat32, {2}, 8, 1)
      .add("\xc3\xa9", DType::kBool, {}, 1, 1);
  write(target.finished());
  EXPECT_THAT(state->paths(), ElementsAre("/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors",
                                          "/model.safetensors.index.json"));
  EXPECT_EQ(content("/model.safetensors.index.json"),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 12\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"model-00002-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\",\n"
            "    \"\\u00e9\": \"model-00002-of-00002.safetensors\"\n"
            "  }\n"
            "}\n");
}

TEST_F(SafetensorsWriterTest, SeveralFilesReadBackTheSame) {
  Target target(2);
  target.add("b", DType::kUint8, {3}, 3, 0).add("a", DType::kFloat32, {2, 0}, 0, 1);
  write(target.finished());
  const auto reader = kSafetensorsFormat.open({fs.get(), {"/"}}, {});
  ASSERT_EQ(reader->catalog().tensors.size(), 2U);
  EXPECT_EQ(reader->catalog().tensors[0].name, "a");
  EXPECT_THAT(reader->catalog().tensors[0].shape.span(), ElementsAre(2, 0));
}

TEST_F(SafetensorsWriterTest, SeveralFilesDoNotFitASingleOne) {
  Target target(2);
  target.add("b", DType::kUint8, {3}, 3, 0).add("a", DType::kUint8, {3}, 3, 1);
  test::expect_error(ErrorCode::kInvalidArgument, "cannot write 2 files as one",
                     [&] { write(target.finished(), {.single_file = true, .base_name = "x"}); });
}

TEST_F(SafetensorsWriterTest, MetadataIsKeptAndFormatAdded) {
  Target target;
  target.add("a", DType::kUint8, {1}, 1);
  target.catalog.metadata = {{"author", "me"}};
  write(target.finished());
  const auto reader = kSafetensorsFormat.open({fs.get(), {"/model.safetensors"}}, {});
  EXPECT_THAT(reader->catalog().metadata,
              ElementsAre(::testing::Pair("author", "me"), ::testing::Pair("format", "pt")));
}

TEST_F(SafetensorsWriterTest, AFormatThatIsThereStays) {
  Target target;
  target.add("a", DType::kUint8, {1}, 1);
  target.catalog.metadata = {{"format", "np"}};
  Catalog& catalog = target.finished();
  write(catalog);
  EXPECT_EQ(catalog.metadata.at("format"), "np");
}

TEST_F(SafetensorsWriterTest, AliasesAreNoted) {
  Target target;
  target.add("a", DType::kUint8, {1}, 1).add("b", DType::kUint8, {1}, 1).add("c\"", DType::kUint8, {1}, 1);
  Catalog& catalog = target.finished();
  catalog.tensors[1].alias_of = 0;
  catalog.tensors[2].alias_of = 0;
  write(catalog);
  EXPECT_EQ(catalog.metadata.at("shardctl.aliases"), R"({"b":"a","c\"":"a"})");
}

TEST_F(SafetensorsWriterTest, Float4DoublesTheLastDimension) {
  Target target;
  target.add("a", DType::kFloat4E2m1fnX2, {2, 3}, 6);
  write(target.finished());
  EXPECT_THAT(content("/model.safetensors"),
              ::testing::HasSubstr(R"("dtype":"F4","shape":[2,6],"data_offsets":[0,6])"));
}

TEST_F(SafetensorsWriterTest, DtypesThatItLacksAreRefusedByName) {
  for (const DType dtype : {DType::kComplex128, DType::kBits16, DType::kQint8}) {
    Target target;
    target.add("weight", dtype, {1}, element_bytes(dtype));
    const Error error = test::error_of([&] { write(target.finished()); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.tensor(), "weight");
    EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string(dtype_name(dtype))));
    const bool has_cast = dtype == DType::kComplex128;  // Bits and quantized integers have none.
    EXPECT_THAT(error.suggestions(), ::testing::Contains(Suggestion{Remedy::kCast, "weight"}).Times(has_cast ? 1 : 0));
    EXPECT_THAT(error.suggestions(), ::testing::Contains(Suggestion{Remedy::kExclude, "weight"}));
  }
}

TEST_F(SafetensorsWriterTest, NamesThatItCannotHoldAreRefused) {
  for (const char* name : {"__metadata__", "\xff"}) {
    Target target;
    target.add(name, DType::kUint8, {1}, 1);
    const Error error = test::error_of([&] { write(target.finished()); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.suggestions(), ::testing::Contains(Suggestion{Remedy::kRename, name}));
  }
}

TEST_F(SafetensorsWriterTest, AShapeThatTheReferenceCannotReadIsRefused) {
  Target target;
  target.add("empty", DType::kUint8, {std::int64_t{1} << 40, std::int64_t{1} << 40, 0}, 0);
  const Error error = test::error_of([&] { kSafetensorsFormat.make_writer({})->place(target.finished()); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.tensor(), "empty");
}

TEST_F(SafetensorsWriterTest, AHeaderPastTheCapIsRefused) {
  Target target;
  target.add("a", DType::kUint8, {1}, 1);
  target.catalog.metadata["long"] = std::string(100'000'000, 'x');
  const Error error = test::error_of([&] { kSafetensorsFormat.make_writer({})->place(target.finished()); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.suggestions(), ::testing::Contains(Suggestion{Remedy::kSpreadFiles}));
}

TEST_F(SafetensorsWriterTest, WithoutTensorsItIsAValidFile) {
  Target target;
  write(target.finished());
  EXPECT_TRUE(kSafetensorsFormat.open({fs.get(), {"/model.safetensors"}}, {})->catalog().tensors.empty());
}

}  // namespace
}  // namespace shard
