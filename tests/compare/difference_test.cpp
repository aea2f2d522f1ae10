#include "libshard/compare/difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <utility>

#include "libshard/compare/digest.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using ::testing::ElementsAre;

/// A checkpoint of uint8 tensors, which are added in the order of their names. All bytes are in one file.
struct Checkpoint {
  /// `cut`: begin of the second of two chunks; 0: one chunk.
  Checkpoint& add(const std::string& name, const std::string& elements, std::int64_t cut = 0) {
    const auto size = static_cast<std::int64_t>(elements.size());
    std::vector<testing::MadeChunk> chunks;
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, size}}) {
      if (begin == end) continue;
      chunks.push_back({{begin}, {end - begin}, {1}, 0, testing::add_storage(catalog, 0, end - begin)});
    }
    for (const char c : elements) bytes.push_back(static_cast<std::byte>(c));
    testing::add_tensor(catalog, name, DType::kUint8, {size}, chunks);
    const auto index = static_cast<std::uint32_t>(catalog.tensors.size() - 1);
    selection.tensors.push_back({index, DType::kUint8, catalog.tensors[index].name, {}});
    return *this;
  }
  ComparedSide side() {
    reader = std::make_unique<testing::MemoryReader>(catalog, std::vector<std::vector<std::byte>>{bytes});
    return {*reader, selection};
  }

  Catalog catalog;
  Selection selection;
  std::vector<std::byte> bytes;
  std::unique_ptr<testing::MemoryReader> reader;
};

TEST(CompareCheckpoints, LayoutsDoNotMatter) {
  Checkpoint a, b;
  a.add("v", "abcd").add("w", "efghij");
  b.add("v", "abcd", 1).add("w", "efghij", 4);
  const Difference found = compare_checkpoints(a.side(), b.side());
  EXPECT_TRUE(found.equal());
  EXPECT_EQ(found.tensors, 2);
}

TEST(CompareCheckpoints, FindsTheElementsThatDiffer) {
  Checkpoint a, b;
  a.add("v", "abcd").add("w", "efghij");
  b.add("v", "abcd").add("w", "efgXiY", 3);
  const Difference found = compare_checkpoints(a.side(), b.side());
  ASSERT_EQ(found.values.size(), 1U);
  EXPECT_EQ(found.values[0].a->name, "w");
  EXPECT_EQ(found.values[0].values.differing, 2);
  EXPECT_EQ(found.values[0].values.first, 3);
  EXPECT_EQ(found.values[0].values.max_abs, 'j' - 'Y');
}

TEST(CompareCheckpoints, ATolerancesDistanceIsNoDifference) {
  Checkpoint a, b;
  EXPECT_TRUE(compare_checkpoints(a.add("w", "aa").side(), b.add("w", "ac").side(), {.atol = 2}).equal());
}

TEST(CompareCheckpoints, NamesAndShapesAreComparedWithoutReading) {
  Checkpoint a, b;
  a.add("only.a", "a").add("w", "abc");
  b.add("only.b", "b").add("w", "ab");
  a.bytes.clear(), b.bytes.clear();
  const Difference found = compare_checkpoints(a.side(), b.side());
  ASSERT_EQ(found.only_in_a.size(), 1U);
  EXPECT_EQ(found.only_in_a[0]->name, "only.a");
  ASSERT_EQ(found.only_in_b.size(), 1U);
  EXPECT_EQ(found.only_in_b[0]->name, "only.b");
  ASSERT_EQ(found.shape.size(), 1U);
  EXPECT_TRUE(found.values.empty());
}

/// Sets the ranks of a checkpoint's tensors, in order.
void set_ranks(Checkpoint& checkpoint, std::initializer_list<std::int32_t> ranks) {
  std::size_t i = 0;
  for (const std::int32_t rank : ranks) checkpoint.catalog.tensors[i++].rank = rank;
}

TEST(CompareCheckpoints, EntriesOfOneNameArePairedByTheirRanks) {
  Checkpoint a, b;
  a.add("w", "a").add("w", "b").add("w", "c");
  b.add("w", "b").add("w", "c");
  set_ranks(a, {0, 1, 2});
  set_ranks(b, {1, 2});
  const Difference found = compare_checkpoints(a.side(), b.side());
  ASSERT_EQ(found.only_in_a.size(), 1U);
  EXPECT_EQ(found.only_in_a[0]->source, 0U);
  EXPECT_TRUE(found.only_in_b.empty());
  EXPECT_TRUE(found.values.empty());
}

TEST(CompareCheckpoints, EntriesOfOneNameArePairedByTheirPathsAndOthersInOrder) {
  const std::array<PathPart, 2> nested{PathPart::of_key("v"), PathPart::of_key("w")};
  Checkpoint a, b, c;
  a.add("v.w", "a").add("v.w", "b");
  a.selection.tensors[1].path = Path(nested);
  b.add("v.w", "b").add("v.w", "a");
  b.selection.tensors[0].path = Path(nested);
  EXPECT_TRUE(compare_checkpoints(a.side(), b.side()).equal());
  c.add("v.w", "a");
  set_ranks(c, {0});
  const Difference found = compare_checkpoints(a.side(), c.side());
  ASSERT_EQ(found.only_in_a.size(), 1U);
  EXPECT_EQ(found.only_in_a[0]->source, 1U);
  EXPECT_TRUE(found.values.empty());
}

TEST(TensorDigests, HashTheElementsInRowMajorOrderWhateverTheChunks) {
  Checkpoint a, b;
  a.add("w", "abcdef").side();
  b.add("w", "abcdef", 2).side();
  Hasher hasher(HashAlgorithm::kSha256);
  hasher.update(std::string_view("abcdef"));
  const std::string expected = hasher.finish_hex();
  EXPECT_THAT(tensor_digests(*a.reader, a.selection, HashAlgorithm::kSha256), ElementsAre(expected));
  EXPECT_THAT(tensor_digests(*b.reader, b.selection, HashAlgorithm::kSha256), ElementsAre(expected));
}

TEST(TensorDigests, OneOfTheCheckpointIsThatOfItsLines) {
  Checkpoint a;
  a.add("w", "abcdef").side();
  Hasher hasher(HashAlgorithm::kSha256);
  hasher.update(std::string_view("w\tuint8\t6\tDIGEST\n"));
  EXPECT_EQ(checkpoint_digest(a.catalog, a.selection, std::vector<std::string>{"DIGEST"}, HashAlgorithm::kSha256),
            hasher.finish_hex());
}

}  // namespace
}  // namespace shard
