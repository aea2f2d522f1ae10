#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/format.h"
#include "formats/hdf5/library/image.h"
#include "formats/hdf5/outline.h"
#include "libshard/catalog/targets/target.h"
#include "libshard/io/file_writer.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

using testing::Content;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::random_tensor;

/// A written file as libhdf5 opens it from memory.
class OpenedFile {
 public:
  explicit OpenedFile(std::vector<std::byte> bytes) : lock_(library_lock()), bytes_(std::move(bytes)) {
    const PropertiesHandle access(H5Pcreate(H5P_FILE_ACCESS));
    checked(H5Pset_fapl_core(access.get(), 1 << 16, false));
    checked(H5Pset_file_image(access.get(), bytes_.data(), bytes_.size()));
    file_ = FileHandle(H5Fopen("memory", H5F_ACC_RDONLY, access.get()));
  }

  DatasetHandle dataset(const std::string& path) const {
    return DatasetHandle(H5Dopen2(file_.get(), path.c_str(), H5P_DEFAULT));
  }
  std::int64_t offset(const std::string& path) const {
    return static_cast<std::int64_t>(H5Dget_offset(dataset(path).get()));
  }
  std::span<const std::byte> elements(const std::string& path, std::size_t bytes) const {
    return std::span(bytes_).subspan(static_cast<std::size_t>(offset(path)), bytes);
  }
  bool has_type(const std::string& path, DType dtype) const {
    const TypeHandle found(H5Dget_type(dataset(path).get()));
    return H5Tequal(found.get(), make_type(type_of(dtype)).get()) > 0;
  }
  std::string text_attribute(const std::string& object, const char* name) const {
    const AttributeHandle attribute(H5Aopen_by_name(file_.get(), object.c_str(), name, H5P_DEFAULT, H5P_DEFAULT));
    const TypeHandle type(H5Aget_type(attribute.get()));
    EXPECT_TRUE(H5Tis_variable_str(type.get()));
    char* text = nullptr;
    checked(H5Aread(attribute.get(), type.get(), &text));
    const std::unique_ptr<char, decltype(&H5free_memory)> owned(text, &H5free_memory);
    return text;
  }
  bool has(const std::string& path) const { return H5Lexists(file_.get(), path.c_str(), H5P_DEFAULT) > 0; }
  /// "FILE:DATASET" of each mapping.
  std::vector<std::string> sources(const std::string& path) const {
    const PropertiesHandle properties(H5Dget_create_plist(dataset(path).get()));
    std::size_t count = 0;
    checked(H5Pget_virtual_count(properties.get(), &count));
    std::vector<std::string> sources;
    for (std::size_t i = 0; i < count; ++i) {
      char file[200] = {}, name[200] = {};
      checked(H5Pget_virtual_filename(properties.get(), i, file, sizeof(file)));
      checked(H5Pget_virtual_dsetname(properties.get(), i, name, sizeof(name)));
      sources.push_back(std::string(file) + ":" + name);
    }
    return sources;
  }

 private:
  std::unique_lock<std::mutex> lock_;
  std::vector<std::byte> bytes_;
  FileHandle file_;
};

class Hdf5Writer : public ::testing::Test {
 protected:
  Hdf5Writer() { fs->make_folder("/d"); }

  void write(const Content& content, const Layout& layout = WholeLayout{}, bool single_file = false) {
    testing::write_checkpoint(
        *fs, *testing::content_reader(content),
        {.format = "hdf5", .destination = "/d/out", .layout = layout, .single_file = single_file});
  }
  OpenedFile open(const std::string& path) const { return OpenedFile(state->content(path)); }
  testing::ContentTensor floats(std::vector<std::int64_t> shape) {
    return random_tensor(random, DType::kFloat32, std::move(shape));
  }

  std::mt19937_64 random{1};
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(Hdf5Writer, ElementsOfEveryDtypeLieWhereTheirDatasetsSay) {
  Content content;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    content[std::string(dtype_name(dtype))] = random_tensor(random, dtype, {3, 4});
  }
  write(content, WholeLayout{}, true);
  const OpenedFile file = open("/d/out");
  for (const auto& [name, tensor] : content) {
    EXPECT_TRUE(std::ranges::equal(file.elements(name, tensor.bytes.size()), tensor.bytes)) << name;
    EXPECT_TRUE(file.has_type(name, tensor.dtype)) << name;
    if (is_opaque(tensor.dtype)) {
      EXPECT_EQ(file.text_attribute(name, "dtype"), name);
    }
  }
}

TEST_F(Hdf5Writer, LargeTensorsBeginOnPagesSmallOnesLieClose) {
  write({{"a", floats({1})}, {"b", floats({3})}, {"c", floats({1 << 14})}, {"d", floats({})}}, WholeLayout{}, true);
  const OpenedFile file = open("/d/out");
  EXPECT_EQ(file.offset("a"), 64);
  EXPECT_EQ(file.offset("b"), 128);
  EXPECT_EQ(file.offset("c"), 4096);
  EXPECT_EQ(file.offset("d"), 4096 + (1 << 16));
}

TEST_F(Hdf5Writer, NamesThatNoLinkCanHaveArePercentEncoded) {
  write({{"a/b", floats({1})}, {"..", floats({1})}, {"%", floats({1})}}, WholeLayout{}, true);
  const OpenedFile file = open("/d/out");
  EXPECT_TRUE(file.has("a%2Fb"));
  EXPECT_TRUE(file.has("%2E%2E"));
  EXPECT_TRUE(file.has("%25"));
  EXPECT_EQ(file.text_attribute("/", "shardctl.names"), "percent-encoded");
}

TEST(Hdf5Outline, AKeyOfManyDotsIsComparedOnlyWithDatasetsAsLongAsItsParts) {
  Arena arena;
  Outline outline;
  outline.link({"w", {}}, outline.add_dataset(DType::kFloat32, Dims(), 0, 4));
  const std::string dots(60'000, '.');
  const Value& one = *make_int(arena, 1);
  EXPECT_LT(test::cpu_seconds([&] { outline.add_object({dots, {}}, one); }), test::cpu_limit(0.1));
  outline.add_object({"w.units", {}}, one);
  EXPECT_EQ(outline.root().attributes.size(), 1U);
  EXPECT_EQ(outline.datasets()[0].attributes.at(0).first, "units");
}

TEST_F(Hdf5Writer, AFolderOfOneFileHasNoMaster) {
  write({{"w", floats({2})}});
  EXPECT_THAT(fs->list("/d/out"), ElementsAre("model.h5"));
}

TEST_F(Hdf5Writer, FilesOfWholeTensorsAreNumbered) {
  write({{"u", floats({4})}, {"w", floats({4})}}, ShardsLayout{2});
  EXPECT_THAT(fs->list("/d/out"), ElementsAre("master.h5", "model-00001-of-00002.h5", "model-00002-of-00002.h5"));
  EXPECT_THAT(open("/d/out/master.h5").sources("w"), ElementsAre("model-00002-of-00002.h5:/w"));
}

TEST_F(Hdf5Writer, RanksThatHoldNothingHaveNoFile) {
  write({{"w", floats({2, 3})}, {"x", floats({1})}}, RanksLayout{4, 0});
  EXPECT_THAT(fs->list("/d/out"), ElementsAre("master.h5", "rank-00000-of-00004.h5", "rank-00001-of-00004.h5"));
  const OpenedFile master = open("/d/out/master.h5");
  EXPECT_THAT(master.sources("w"), ElementsAre("rank-00000-of-00004.h5:/w", "rank-00001-of-00004.h5:/w"));
  EXPECT_THAT(master.sources("x"), ElementsAre("rank-00000-of-00004.h5:/x"));
}

TEST_F(Hdf5Writer, FilesOfRanksThatStateAnotherRankOrNumberOfRanksAreRefusedWhenRead) {
  const std::string first = "/d/out/rank-00000-of-00002.h5", second = "/d/out/rank-00001-of-00002.h5";
  write({{"w", floats({4, 3})}}, RanksLayout{2, 0});
  const auto one = state->content(first), two = state->content(second);
  state->put(first, two);
  state->put(second, one);
  EXPECT_EQ(test::error_of([&] { testing::open_checkpoint(*fs, "/d/out"); }).kind(), FindingKind::kRankMismatch);
  fs->remove_all("/d/out");
  write({{"w", floats({8, 3})}}, RanksLayout{4, 0});
  const auto of_four = state->content("/d/out/rank-00001-of-00004.h5");
  fs->remove_all("/d/out");
  write({{"w", floats({4, 3})}}, RanksLayout{2, 0});
  state->put(second, of_four);
  const Error error = test::error_of([&] { testing::open_checkpoint(*fs, "/d/out"); });
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.file(), "rank-00001-of-00002.h5");
  EXPECT_EQ(error.expected(), "2");
  EXPECT_EQ(error.found(), "4");
}

TEST_F(Hdf5Writer, TheMasterHoldsWhatCannotBeVirtual) {
  const Content content = {{"e", floats({0, 3})}, {"s", floats({})}};
  write(content, RanksLayout{2, 0});
  EXPECT_THAT(fs->list("/d/out"), ElementsAre("master.h5"));
  const OpenedFile master = open("/d/out/master.h5");
  EXPECT_TRUE(std::ranges::equal(master.elements("s", 4), content.at("s").bytes));
  EXPECT_TRUE(master.has("e"));
}

TEST_F(Hdf5Writer, ASecondBoxOfARankHasItsPlaceInItsName) {
  // Rank 0 has rows 0 and 2, rank 1 rows 1 and 3.
  const MeshLayout mesh{{{"a", 2}}, {{"w", {parse_placement("_S(0,2)")}, {}}}, match_first_rule};
  write({{"w", floats({4, 2})}}, mesh);
  EXPECT_THAT(open("/d/out/master.h5").sources("w"),
              ElementsAre("rank-00000-of-00002.h5:/w", "rank-00001-of-00002.h5:/w",
                          "rank-00000-of-00002.h5:/w%%[2:3,0:2]", "rank-00001-of-00002.h5:/w%%[3:4,0:2]"));
}

TEST_F(Hdf5Writer, PackedElementsAreBytesWithTheirShape) {
  const Content content = {{"w", random_tensor(random, DType::kFloat6E2m3fn, {4, 8})}};
  write(content, RanksLayout{2, 0});
  const OpenedFile rank = open("/d/out/rank-00001-of-00002.h5");
  EXPECT_TRUE(std::ranges::equal(rank.elements("w", 12), std::span(content.at("w").bytes).subspan(12)));
}

TEST_F(Hdf5Writer, RefusesPiecesOfPackedElementsThatAreNotRuns) {
  test::expect_error(ErrorCode::kUnsupported, "a piece is not one run", [&] {
    write({{"w", random_tensor(random, DType::kFloat6E2m3fn, {4, 8})}}, RanksLayout{2, 1});
  });
}

TEST_F(Hdf5Writer, RefusesMoreDimensionsThanADatasetHas) {
  const std::vector<std::int64_t> ones(33, 1);
  test::expect_error(ErrorCode::kUnsupported, "it has 33 dimensions", [&] {
    write({{"w", floats(ones)}}, WholeLayout{}, true);
  });
  write({{"w", floats(std::vector<std::int64_t>(32, 1))}}, WholeLayout{}, true);
}

TEST_F(Hdf5Writer, RefusesSeveralFilesAsOne) {
  test::expect_error(ErrorCode::kInvalidArgument, "as one", [&] {
    write({{"w", floats({4})}}, RanksLayout{2, 0}, true);
  });
}

/// Records the written offsets of a file.
class NotingFile final : public FileWriter {
 public:
  void write_at(std::int64_t offset, std::span<const std::byte> data) override {
    extents.emplace_back(offset, offset + std::ssize(data));
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  std::vector<std::pair<std::int64_t, std::int64_t>> extents;
};

TEST_F(Hdf5Writer, MetadataAndElementsLieApartAndFillTheFile) {
  Content content = testing::random_content(random, 500, 40, std::array{DType::kFloat32, DType::kInt8});
  content["large"] = floats({300, 400});
  const std::unique_ptr<Reader> reader = testing::content_reader(content);
  Catalog target =
      make_target(reader->catalog(), select(reader->catalog(), {}), RanksLayout{3, 0}, format_named("hdf5").traits);
  const std::unique_ptr<Writer> writer = make_writer({});
  writer->place(target);
  for (std::uint32_t i = 0; i < target.files.size(); ++i) {
    NotingFile file;
    writer->begin_file(target, i, file);
    EXPECT_EQ(std::ranges::max(file.extents).second, target.files[i].bytes);
    for (const Storage& storage : target.storages) {
      if (storage.file == i && storage.bytes > 0)
        file.extents.emplace_back(storage.offset, storage.offset + storage.bytes);
    }
    std::ranges::sort(file.extents);
    for (std::size_t e = 1; e < file.extents.size(); ++e) {
      EXPECT_LE(file.extents[e - 1].second, file.extents[e].first) << target.files[i].path;
    }
  }
}

}  // namespace
}  // namespace shard::hdf5
