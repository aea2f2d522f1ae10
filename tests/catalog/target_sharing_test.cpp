// Shared storages, strides and aliases on their way into a format that has them.
#include <gtest/gtest.h>

#include "libshard/catalog/targets/target.h"
#include "tests/catalog/build.h"

namespace shard {
namespace {

using test::add_storage;
using test::add_view;
using test::Numbers;

constexpr FormatTraits kSharing = {.name = "torch", .objects = true, .sharing = true, .aliases = true};
constexpr FormatTraits kWithoutSharing = {.name = "safetensors"};

Catalog sharing_target_of(Catalog& source, const SelectionOptions& options = {}, const Layout& layout = WholeLayout{},
                          const FormatTraits& traits = kSharing) {
  validate_catalog(source);
  return make_target(source, select(source, options), layout, traits);
}

const StoredTensor& stored(const Catalog& catalog, std::size_t tensor) {
  return catalog.stored[catalog.chunks_of(catalog.tensors[tensor])[0].stored];
}

struct Copy {
  std::int64_t from, to, bytes;
  friend bool operator==(const Copy&, const Copy&) = default;
};
std::vector<Copy> copies(const Catalog& catalog) {
  std::vector<Copy> all;
  for (const StorageCopy& copy : catalog.storage_copies) all.push_back({copy.from_bytes, copy.to_bytes, copy.bytes});
  return all;
}

TEST(Sharing, CopiesTheUnionOfTheSpansThatViewsUse) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 400);
  add_view(source, "a", storage, DType::kFloat32, {10}, {}, 5);
  add_view(source, "b", storage, DType::kFloat32, {10}, {}, 10);
  add_view(source, "c", storage, DType::kFloat32, {5}, {}, 50);
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(copies(target), (std::vector<Copy>{{20, 0, 60}, {200, 60, 20}}));
  ASSERT_EQ(target.storages.size(), 1U);
  EXPECT_EQ(target.storages[0].bytes, 80);
  EXPECT_TRUE(target.storages[0].whole_copy);
  EXPECT_EQ(stored(target, 0).first, 0);
  EXPECT_EQ(stored(target, 1).first, 5);
  EXPECT_EQ(stored(target, 2).first, 15);
}

TEST(Sharing, TakesAliasesOfWhichOneIsCastForTwoTensors) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 40);
  for (const char* name : {"a", "b", "c"}) add_view(source, name, storage, DType::kFloat32, {10});
  const Catalog target = sharing_target_of(source, {.cast = {"b=bfloat16"}});
  EXPECT_EQ(target.tensors[1].alias_of, kNoIndex);
  EXPECT_EQ(target.tensors[2].alias_of, 0U);
}

TEST(Sharing, JoinsSpansThatTouch) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 40);
  add_view(source, "a", storage, DType::kFloat32, {5});
  add_view(source, "b", storage, DType::kFloat32, {5}, {}, 5);
  EXPECT_EQ(copies(sharing_target_of(source)), (std::vector<Copy>{{0, 0, 40}}));
}

TEST(Sharing, BeginsViewsOfAnyDtypeAtWholeElements) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 64);
  add_view(source, "bytes", storage, DType::kUint8, {3}, {}, 1);
  add_view(source, "doubles", storage, DType::kFloat64, {2}, {}, 4);
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(copies(target), (std::vector<Copy>{{1, 1, 3}, {32, 8, 16}}));
  EXPECT_EQ(target.storages[0].bytes, 24);
  EXPECT_EQ(stored(target, 0).first, 1);
  EXPECT_EQ(stored(target, 1).first, 1);
}

TEST(Sharing, CopiesElementsThatShareBytesAsSeparateTensors) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 24);
  add_view(source, "a", storage, DType::kFloat6E2m3fn, {4, 4});
  add_view(source, "b", storage, DType::kFloat6E2m3fn, {4, 4}, {}, 16);
  const Catalog target = sharing_target_of(source);
  EXPECT_TRUE(target.storage_copies.empty());
  ASSERT_EQ(target.storages.size(), 2U);
  EXPECT_EQ(target.storages[0].bytes, 12);
}

TEST(Sharing, KeepsStridesOfATransposedTensor) {
  Catalog source;
  add_view(source, "t", add_storage(source, 24), DType::kFloat32, {2, 3}, {1, 2});
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(test::to_numbers(stored(target, 0).strides), (Numbers{1, 2}));
  EXPECT_EQ(copies(target), (std::vector<Copy>{{0, 0, 24}}));
}

TEST(Sharing, KeepsSpanAndStridesOfEveryOtherColumn) {
  Catalog source;
  add_view(source, "t", add_storage(source, 100), DType::kFloat32, {2, 2}, {4, 2}, 3);
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(test::to_numbers(stored(target, 0).strides), (Numbers{4, 2}));
  EXPECT_EQ(copies(target), (std::vector<Copy>{{12, 0, 28}}));
  EXPECT_EQ(stored(target, 0).first, 0);
}

TEST(Sharing, KeepsExpandedTensorsExpanded) {
  Catalog source;
  add_view(source, "e", add_storage(source, 4), DType::kFloat32, {1000}, {0});
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(target.storages[0].bytes, 4);
  EXPECT_EQ(test::to_numbers(stored(target, 0).strides), Numbers{0});
}

TEST(Sharing, StoresARowMajorTensorAloneWithoutItsNeighbours) {
  Catalog source;
  add_view(source, "a", add_storage(source, 400), DType::kFloat32, {2}, {}, 50);
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(target.storages[0].bytes, 8);
  EXPECT_FALSE(target.storages[0].whole_copy);
  EXPECT_TRUE(target.storage_copies.empty());
}

TEST(Sharing, ForgetsViewsThatAreNotSelected) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 400);
  add_view(source, "a", storage, DType::kFloat32, {100});
  add_view(source, "b", storage, DType::kFloat32, {2}, {}, 50);
  EXPECT_EQ(sharing_target_of(source, {.exclude = {"a"}}).storages[0].bytes, 8);
}

TEST(Sharing, KeepsAliases) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 8);
  for (const char* name : {"a", "b"}) add_view(source, name, storage, DType::kFloat32, {2});
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(target.tensors[1].alias_of, 0U);
  EXPECT_EQ(target.storages.size(), 1U);
}

TEST(Sharing, OfAliasesAloneStoresThemOnceAndOtherViewsApart) {
  constexpr FormatTraits traits = {.name = "hdf5", .aliases = true};
  Catalog source;
  const std::uint32_t storage = add_storage(source, 24);
  add_view(source, "a", storage, DType::kFloat32, {2, 3}, {1, 2});
  add_view(source, "b", storage, DType::kFloat32, {2, 3}, {1, 2});
  add_view(source, "c", storage, DType::kFloat32, {3, 2});
  const Catalog target = sharing_target_of(source, {}, WholeLayout{}, traits);
  EXPECT_EQ(target.storages.size(), 2U);
  EXPECT_EQ(stored(target, 1).storage, stored(target, 0).storage);
  EXPECT_NE(stored(target, 2).storage, stored(target, 0).storage);
  EXPECT_EQ(test::to_numbers(stored(target, 0).strides), (Numbers{3, 1}));
  EXPECT_TRUE(target.storage_copies.empty());
}

TEST(Sharing, WholeTensorsOfAFormatThatPrefersThemLieInNoRanksFile) {
  constexpr FormatTraits traits = {.name = "hdf5", .pieces = true, .prefers_whole = true};
  Catalog source;
  add_view(source, "a", add_storage(source, 8), DType::kFloat32, {2});
  const Catalog target = sharing_target_of(source, {}, WholeLayout{}, traits);
  EXPECT_EQ(target.files[0].rank, -1);
  EXPECT_EQ(stored(target, 0).rank, -1);
  EXPECT_EQ(target.world_size, std::nullopt);
}

TEST(Sharing, KeepsAliasesThatAreCastAlike) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 8);
  for (const char* name : {"a", "b"}) add_view(source, name, storage, DType::kFloat32, {2});
  const Catalog target = sharing_target_of(source, {.cast = {"*=float16"}});
  EXPECT_EQ(target.tensors[1].alias_of, 0U);
  ASSERT_EQ(target.storages.size(), 1U);
  EXPECT_EQ(target.storages[0].bytes, 4);
  EXPECT_FALSE(target.storages[0].whole_copy);
  EXPECT_TRUE(target.warnings.empty());
}

TEST(Sharing, TakesACastViewOutOfItsStorageAndSaysSo) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 40);
  add_view(source, "a", storage, DType::kFloat32, {10});
  add_view(source, "b", storage, DType::kFloat32, {2}, {2}, 1);
  const Catalog target = sharing_target_of(source, {.cast = {"b=float16"}});
  ASSERT_EQ(target.storages.size(), 2U);
  EXPECT_EQ(target.storages[1].bytes, 4);
  EXPECT_EQ(test::to_numbers(stored(target, 1).strides), Numbers{1});
  EXPECT_EQ(target.warnings, std::vector<std::string>{"1 cast tensors no longer share storage with others: 'b'"});
}

TEST(Sharing, KeepsViewsOfDecodedStoragesTogether) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 24);
  source.storages[storage].plain = false;
  add_view(source, "a", storage, DType::kFloat32, {3, 2}, {1, 3});
  add_view(source, "b", storage, DType::kFloat32, {6});
  const Catalog target = sharing_target_of(source);
  ASSERT_EQ(target.storages.size(), 1U);
  EXPECT_TRUE(target.storages[0].plain);
  EXPECT_EQ(test::to_numbers(stored(target, 0).strides), (Numbers{1, 3}));
  ASSERT_EQ(target.storage_copies.size(), 1U);
  EXPECT_EQ(target.storage_copies[0].bytes, 24);
}

TEST(Sharing, KeepsSharersInOneFile) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 8);
  add_view(source, "a", storage, DType::kUint8, {8});
  test::add_tensor(source, "b", {8}, DType::kUint8);
  add_view(source, "c", storage, DType::kUint8, {4});
  const Catalog target = sharing_target_of(source, {}, SizeLayout{8});
  EXPECT_EQ(target.files.size(), 2U);
  EXPECT_EQ(stored(target, 0).storage, stored(target, 2).storage);
  EXPECT_EQ(target.storages[stored(target, 0).storage].file, 0U);
  EXPECT_EQ(target.storages[stored(target, 1).storage].file, 1U);
}

TEST(Sharing, StoresEveryNameInFullWhereTheFormatHasNone) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 8);
  for (const char* name : {"a", "b"}) add_view(source, name, storage, DType::kFloat32, {2});
  const Catalog target = sharing_target_of(source, {}, WholeLayout{}, kWithoutSharing);
  EXPECT_EQ(target.storages.size(), 2U);
  EXPECT_NE(stored(target, 0).storage, stored(target, 1).storage);
  EXPECT_EQ(target.tensors[1].alias_of, 0U);
}

TEST(Sharing, PointsEmptyViewsAtTheBegin) {
  Catalog source;
  const std::uint32_t storage = add_storage(source, 8);
  add_view(source, "a", storage, DType::kFloat32, {2});
  add_view(source, "e", storage, DType::kFloat32, {0}, {}, 2);
  const Catalog target = sharing_target_of(source);
  EXPECT_EQ(stored(target, 1).first, 0);
  EXPECT_EQ(target.storages[0].bytes, 8);
}

}  // namespace
}  // namespace shard
