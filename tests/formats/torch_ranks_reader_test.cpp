#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>

#include "formats/detect.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/io/paths.h"
#include "libshard/map/documents/layout_document.h"
#include "tests/formats/rank_files.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Tensor& tensor_named(const Catalog& catalog, const std::string& name) { return *catalog.find(name); }

std::vector<std::string> boxes_of(const Catalog& catalog, const std::string& name) {
  std::vector<std::string> boxes;
  for (const Chunk& chunk : catalog.chunks_of(tensor_named(catalog, name))) {
    boxes.push_back(to_string(chunk.sizes) + " at " + to_string(chunk.offsets) + " of rank " +
                    std::to_string(catalog.stored[chunk.stored].rank));
  }
  return boxes;
}

/// Two ranks with a ShardedTensor of rows and the additions of `each`.
RankFolder two_ranks(const std::function<void(RankFileMaker&, int rank)>& each = [](RankFileMaker&, int) {}) {
  RankFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    RankFileMaker maker;
    const std::vector<float> mine = rank == 0 ? std::vector<float>{0, 1, 2, 3} : std::vector<float>{4, 5};
    maker.put_rows("w", rank, {{0, 2}, {2, 3}}, 2, mine);
    each(maker, rank);
    folder.put("rank_" + std::to_string(rank) + ".pt", maker);
  }
  return folder;
}

TEST(TorchRanksReader, ShardsOfAllFilesBecomeChunksOfOneTensor) {
  RankFolder folder = two_ranks();
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().world_size, 2);
  EXPECT_EQ(reader->catalog().rank_files, RankFiles::kShardedTensor);
  EXPECT_THAT(boxes_of(reader->catalog(), "w"),
              ElementsAre("[2, 2] at [0, 0] of rank 0", "[1, 2] at [2, 0] of rank 1"));
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TorchRanksReader, FilesKnowTheirRankWhateverTheirOrder) {
  RankFolder folder = two_ranks();
  folder.put("a.pt", folder.content("rank_1.pt"));
  folder.put("b.pt", folder.content("rank_0.pt"));
  const auto reader = folder.open_files({"a.pt", "b.pt"});
  EXPECT_EQ(reader->catalog().files[0].rank, 1);
  EXPECT_EQ(reader->catalog().files[1].rank, 0);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TorchRanksReader, AnObjectOfAForeignClassIsReportedInItsRanksFile) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int rank) {
    if (rank == 1) maker.put("sched", make_call(maker.arena(), make_global(maker.arena(), "my_pkg", "Sched"), {}));
  });
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kForbiddenGlobal) << error.what();
  EXPECT_EQ(error.file(), "rank_1.pt");
}

/// Allocated bytes, including those of large blocks.
std::size_t bytes_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TorchRanksReader, WhatEachRankSaysOfAllShardsIsKeptOnce) {
  constexpr std::int64_t kRanks = 128;
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (std::int64_t i = 0; i < kRanks; ++i) rows.emplace_back(i, i + 1);
  RankFolder folder;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    RankFileMaker maker;
    maker.put_rows("w", rank, rows, 1, {static_cast<float>(rank)});
    maker.put("same", 7);
    maker.put("own", rank);
    folder.put("rank_" + std::to_string(rank) + ".pt", maker);
  }
  const Source source = folder.source();
  const std::size_t before = bytes_in_use();
  const auto reader = kTorchRanksFormat.open(source, {});
  const std::size_t taken = bytes_in_use() - before;
  EXPECT_LT(taken, kRanks * kRanks * 100) << "bytes for as many shards as the files name";
  std::vector<float> expected;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) expected.push_back(static_cast<float>(rank));
  EXPECT_EQ(whole<float>(*reader, "w"), expected);
  EXPECT_EQ(reader->catalog().objects.size(), 1U + kRanks);
  EXPECT_EQ(reader->catalog().objects[kRanks - 1].value->number, kRanks - 1);
}

TEST(TorchRanksReader, TheRootIsRankZerosTreeWithTensorsInIt) {
  RankFolder folder("2.11.0/ranks_training_r2");
  const auto reader = folder.open();
  const Value* root = reader->catalog().root;
  ASSERT_NE(root, nullptr);
  const Value* weight = find_key(*find_key(*root, "model"), "weight");
  ASSERT_EQ(weight->kind, ValueKind::kTensor);
  EXPECT_EQ(reader->catalog().tensors[static_cast<std::size_t>(weight->number)].name, "model.weight");
}

// --- Plain tensors and objects ---

TEST(TorchRanksReader, APlainTensorThatIsEqualOnAllRanksIsOneEntry) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int) { maker.put("p", maker.floats({2}, {1, 2})); });
  const auto reader = folder.open();
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.tensors.size(), 2U);
  EXPECT_EQ(tensor_named(catalog, "p").rank, -1);
  EXPECT_THAT(boxes_of(catalog, "p"), ElementsAre("[2] at [0] of rank 0"));
}

TEST(TorchRanksReader, PlainTensorsThatDifferInOneByteAreEntriesOfTheirRanks) {
  std::vector<float> large(300'000, 1.0F);  // More than one block of the comparison.
  RankFolder folder = two_ranks([&](RankFileMaker& maker, int rank) {
    large.back() = rank == 0 ? 1.0F : 1.0000001F;
    maker.put("p", maker.floats({300'000}, large));
  });
  const auto reader = folder.open();
  ASSERT_EQ(reader->catalog().tensors.size(), 3U);
  EXPECT_EQ(reader->catalog().tensors[0].rank, 0);
  EXPECT_EQ(reader->catalog().tensors[1].rank, 1);
  EXPECT_EQ(reader->catalog().tensors[1].name, "p");
}

TEST(TorchRanksReader, EqualBytesOfOtherDtypesAreNotEqual) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int rank) {
    maker.put("p", maker.tensor<std::int32_t>({1}, {0}, rank == 0 ? DType::kInt32 : DType::kFloat32));
  });
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 3U);
}

TEST(TorchRanksReader, NaNsOfOnePayloadAreEqual) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int) {
    maker.put("p", maker.tensor<std::uint32_t>({1}, {0x7FC00001}, DType::kFloat32));
  });
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 2U);
}

TEST(TorchRanksReader, APlainTensorOfOneRankAloneIsThatRanks) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int rank) {
    if (rank == 1) maker.put("p", maker.floats({2}, {1, 2}));
  });
  const auto reader = folder.open();
  EXPECT_EQ(tensor_named(reader->catalog(), "p").rank, 1);
  EXPECT_EQ(reader->catalog().root, nullptr) << "rank 0's tree lacks it";
}

TEST(TorchRanksReader, EqualObjectsAreOneEntryAndOthersOnePerRank) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int rank) {
    maker.put("same", 7);
    maker.put("seen", 100 + rank);
  });
  const auto reader = folder.open();
  const std::vector<Object>& objects = reader->catalog().objects;
  ASSERT_EQ(objects.size(), 3U);
  EXPECT_EQ(objects[0].rank, -1);
  EXPECT_EQ(objects[1].rank, 0);
  EXPECT_EQ(objects[1].value->number, 100);
  EXPECT_EQ(objects[2].rank, 1);
  EXPECT_EQ(objects[2].value->number, 101);
}

TEST(TorchRanksReader, ObjectsWithTensorsInsideAreEntriesOfTheirRanks) {
  RankFolder folder = two_ranks([](RankFileMaker& maker, int rank) {
    Value* const tensor[] = {maker.floats({1}, {static_cast<float>(rank)})};
    maker.put("x", make_call(maker.arena(), make_global(maker.arena(), "builtins", "slice"), tensor));
  });
  const auto reader = folder.open();  // Both files name the same storage.
  const std::vector<Object>& objects = reader->catalog().objects;
  ASSERT_EQ(objects.size(), 2U);
  EXPECT_EQ(objects[0].rank, 0);
  EXPECT_EQ(objects[1].rank, 1);
}

TEST(TorchRanksReader, ATensorHereAndAnObjectThereAreEntriesOfTheirRanks) {
  RankFolder folder = two_ranks(
      [](RankFileMaker& maker, int rank) { rank == 0 ? maker.put("x", 1) : maker.put("x", maker.floats({1}, {1})); });
  const auto reader = folder.open();
  EXPECT_EQ(tensor_named(reader->catalog(), "x").rank, 1);
  ASSERT_EQ(reader->catalog().objects.size(), 1U);
  EXPECT_EQ(reader->catalog().objects[0].rank, 0);
}

TEST(TorchRanksReader, AnExpandedTensorIsComparedByWhatItLooksInto) {
  RankFolder folder = two_ranks();
  for (int rank = 0; rank < 2; ++rank) {
    RankFileMaker maker;
    maker.put_rows("w", rank, {{0, 1}, {1, 2}}, 1, {static_cast<float>(rank)});
    maker.put("p", maker.floats({1}, {1}));
    const std::string name = "rank_" + std::to_string(rank) + ".pt";
    folder.put(name, maker);
    folder.edit(name, [](Arena& arena, Value& root) {
      Value* tensor = find_key(root, "p");
      tensor->items()[2] = make_list(arena, ValueKind::kTuple, std::vector{make_int(arena, 1000)});
      tensor->items()[3] = make_list(arena, ValueKind::kTuple, std::vector{make_int(arena, 0)});
    });
  }
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 2U);
}

// --- ShardedTensors ---

TEST(TorchRanksReader, ChunkShardingSpecsAreKeptAsWords) {
  RankFolder folder("2.11.0/ranks_reversed_r2");
  const auto reader = folder.open();
  const Tensor& tensor = tensor_named(reader->catalog(), "layer.weight");
  ASSERT_NE(tensor.sharding, kNoIndex);
  const Sharding& words = reader->catalog().shardings[tensor.sharding];
  EXPECT_THAT(words.ranks, ElementsAre(1, 0));
  EXPECT_THAT(words.placements, ElementsAre(Placement{Placement::kShard, 0, 1}));
}

TEST(TorchRanksReader, BoxesInNoOrderHaveNoWords) {
  RankFolder folder("2.11.0/ranks_boxes_r4");
  const auto reader = folder.open();
  EXPECT_EQ(tensor_named(reader->catalog(), "five").sharding, kNoIndex);
  EXPECT_THAT(whole<float>(*reader, "five"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
}

TEST(TorchRanksReader, AnEmptyShardMayLiePastTheEnd) {
  RankFolder folder;
  for (int rank = 0; rank < 4; ++rank) {
    RankFileMaker maker;
    const std::size_t rows = rank < 2 ? 2 : 3 - static_cast<std::size_t>(rank);
    maker.put_rows("five", rank, {{0, 2}, {2, 4}, {4, 5}, {6, 6}}, 1, std::vector<float>(rows, 1));
    folder.put("rank_" + std::to_string(rank) + ".pt", maker);
  }
  const auto reader = folder.open();
  EXPECT_THAT(boxes_of(reader->catalog(), "five"),
              ElementsAre("[2, 1] at [0, 0] of rank 0", "[2, 1] at [2, 0] of rank 1", "[1, 1] at [4, 0] of rank 2",
                          "[0, 1] at [6, 0] of rank 3"));
}

TEST(TorchRanksReader, TensorPropertiesMayHaveFiveFieldsOrSix) {
  EXPECT_EQ(RankFolder("1.13.1/ranks_sharded_r2").open()->catalog().tensors.size(), 3U);
  EXPECT_EQ(RankFolder("2.15.0/ranks_sharded_r2").open()->catalog().tensors.size(), 3U);
}

// --- DTensors ---

TEST(TorchRanksReader, DTensorsOfAGridAreBoxesAndWords) {
  RankFolder folder("2.11.0/ranks_mesh_r4");
  const auto reader = folder.open();
  const Catalog& catalog = reader->catalog();
  EXPECT_EQ(catalog.rank_files, RankFiles::kDTensor);
  EXPECT_THAT(boxes_of(catalog, "embed.weight"),
              ElementsAre("[4, 2] at [0, 0] of rank 0", "[4, 1] at [0, 2] of rank 1", "[3, 2] at [4, 0] of rank 2",
                          "[3, 1] at [4, 2] of rank 3"));
  const Sharding& words = catalog.shardings[tensor_named(catalog, "embed.weight").sharding];
  EXPECT_THAT(words.mesh, ElementsAre(MeshAxis{"dp", 2}, MeshAxis{"tp", 2}));
  EXPECT_TRUE(words.ranks.empty());
}

// The pickle of torch 2.11 for a mesh that DeviceMesh() itself created.
TEST(TorchRanksReader, AMeshLayoutsShapeMayBeATorchSize) {
  RankFolder folder("2.11.0/ranks_mesh_r4");
  for (int rank = 0; rank < 4; ++rank) {
    folder.edit("rank_" + std::to_string(rank) + ".pt", [](Arena& arena, Value& root) {
      Value& layout = object_of(root, "_MeshLayout");
      Value& shape = *find_key(*layout.state(), "shape");
      Value* const sizes[] = {make_list(arena, ValueKind::kTuple, shape.items())};
      shape = *make_call(arena, make_global(arena, "torch", "Size"), sizes);
    });
  }
  const auto reader = folder.open();
  const Sharding& words = reader->catalog().shardings[tensor_named(reader->catalog(), "embed.weight").sharding];
  EXPECT_THAT(words.mesh, ElementsAre(MeshAxis{"dp", 2}, MeshAxis{"tp", 2}));
}

TEST(TorchRanksReader, ReplicasAreListedAndReadFromTheLowestRank) {
  RankFolder folder("2.11.0/ranks_replica_r4");
  const auto reader = folder.open();
  EXPECT_THAT(boxes_of(reader->catalog(), "layer.bias"), ElementsAre("[6] at [0] of rank 0", "[6] at [0] of rank 2",
                                                                     "[6] at [6] of rank 1", "[6] at [6] of rank 3"));
}

TEST(TorchRanksReader, AStridedShardIsOneStoredTensorOfSeveralBoxes) {
  const Sharding words{{{"dp", 2}}, {}, {{Placement::kStridedShard, 0, 2}}};
  RankFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    RankFileMaker maker;
    const float first = static_cast<float>(2 * rank);
    maker.put_dtensor("w", {8}, words, rank, maker.floats({4}, {first, first + 1, first + 4, first + 5}));
    folder.put(std::to_string(rank) + ".pt", maker);
  }
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().stored.size(), 2U);
  EXPECT_THAT(boxes_of(reader->catalog(), "w"), ElementsAre("[2] at [0] of rank 0", "[2] at [2] of rank 1",
                                                            "[2] at [4] of rank 0", "[2] at [6] of rank 1"));
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(TorchRanksReader, AShardOrderOtherThanSlowestFirstIsFollowed) {
  const Sharding words{{{"dp", 2}, {"tp", 2}}, {}, {{Placement::kShard, 0, 1}, {Placement::kShard, 0, 1}}};
  RankFolder folder;
  for (int rank = 0; rank < 4; ++rank) {
    RankFileMaker maker;
    maker.put_dtensor("w", {4}, words, rank, maker.floats({1}, {static_cast<float>(rank)}));
    const std::string name = std::to_string(rank) + ".pt";
    folder.put(name, maker);
    folder.edit(name, [](Arena& arena, Value& root) {  // Axis 1 is cut first.
      Value& entry = object_of(root, "ShardOrderEntry");
      entry.items()[1] = make_list(arena, ValueKind::kTuple, std::vector{make_int(arena, 1), make_int(arena, 0)});
    });
  }
  const auto reader = folder.open();
  EXPECT_EQ(tensor_named(reader->catalog(), "w").sharding, kNoIndex);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 2, 1, 3));
}

using RankPairs = std::array<std::array<std::int64_t, 2>, 2>;

/// Two meshes of two ranks each; rank 3 has `last`.
RankFolder two_meshes(float last, const RankPairs& meshes = {{{0, 1}, {2, 3}}}) {
  RankFolder folder;
  for (const std::array<std::int64_t, 2>& mesh : meshes) {
    const Sharding words{{{"tp", 2}}, {mesh.begin(), mesh.end()}, {{Placement::kShard, 0, 1}}};
    for (int i = 0; i < 2; ++i) {
      const std::int64_t rank = mesh[static_cast<std::size_t>(i)];
      RankFileMaker maker;
      maker.put_dtensor("w", {2}, words, i, maker.floats({1}, {rank == 3 ? last : static_cast<float>(i)}));
      folder.put(std::to_string(rank) + ".pt", maker);
    }
  }
  return folder;
}

/// The catalog's description of "w" on two meshes.
Sharding words_on(const RankPairs& meshes) {
  RankFolder folder = two_meshes(1, meshes);
  const auto reader = folder.open();
  return reader->catalog().shardings.at(tensor_named(reader->catalog(), "w").sharding);
}

TEST(TorchRanksReader, MeshesOfPartsOfTheWorldMayHoldTheSame) {
  RankFolder folder = two_meshes(1);
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().world_size, 4);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1));
}

TEST(TorchRanksReader, MeshesOfPartsOfTheWorldAreOneWithReplicas) {
  const Placement cut{Placement::kShard, 0, 1}, repeated;
  EXPECT_EQ(words_on({{{0, 1}, {2, 3}}}), (Sharding{{{"replica", 2}, {"tp", 2}}, {}, {repeated, cut}}));
  EXPECT_EQ(words_on({{{0, 2}, {1, 3}}}), (Sharding{{{"tp", 2}, {"replica", 2}}, {}, {cut, repeated}}));
  EXPECT_EQ(words_on({{{0, 3}, {2, 1}}}), (Sharding{{{"replica", 2}, {"tp", 2}}, {0, 3, 2, 1}, {repeated, cut}}));
}

TEST(TorchRanksReader, MeshesThatHoldDifferentValuesAreRefused) {
  RankFolder folder = two_meshes(5);
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kReplicaMismatch);
  EXPECT_THAT(error.what(), HasSubstr("the meshes of rank 1 and of rank 3 have different values"));
}

TEST(TorchRanksReader, AResultStillUnderWayIsUnwrapped) {
  RankFolder folder("2.11.0/ranks_dtensor_r2");
  for (const char* name : {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}) {
    folder.edit(name, [](Arena& arena, Value& root) {
      Value& dtensor = object_of(root, "DTensor");
      Value*& local = attribute_of(dtensor, "_local_tensor");
      Value* dict = make_list(arena, ValueKind::kDict, std::vector{make_string(arena, "elem"), local});
      Value* state = make_list(arena, ValueKind::kTuple, std::vector{make_value(arena, ValueKind::kNone), dict});
      Value* cls = make_global(arena, "torch.distributed._functional_collectives", "AsyncCollectiveTensor");
      local = make_call(arena, dtensor.callee(), std::vector{dtensor.items()[0], cls, dtensor.items()[2], state});
    });
  }
  const auto reader = folder.open();
  EXPECT_EQ(whole<std::int64_t>(*reader, "embed.weight").front(), -10);
}

// --- Plain slices ---

constexpr const char* kLayout = R"({"schema": "shardctl.layout/1", "mesh": {"tp": 2},
  "rules": [{"match": "w", "shard": [{"axis": "tp", "dim": 0}]}]})";

RankFolder slices(std::vector<std::int64_t> rows) {
  RankFolder folder;
  float next = 0;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    RankFileMaker maker;
    std::vector<float> mine;
    for (std::int64_t i = 0; i < rows[rank]; ++i) mine.push_back(next++);
    maker.put("w", maker.floats({rows[rank]}, mine));
    maker.put("norm", maker.floats({1}, {5}));
    folder.put("slice." + std::to_string(rank) + ".pt", maker);
  }
  return folder;
}

TEST(TorchRanksReader, SlicesAreJoinedByALayoutDocumentBesideThem) {
  RankFolder folder = slices({3, 2});
  folder.put("layout.json", kLayout);
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().rank_files, RankFiles::kPlain);
  EXPECT_EQ(reader->catalog().world_size, 2);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(tensor_named(reader->catalog(), "norm").chunk_count, 1U);
  EXPECT_NE(tensor_named(reader->catalog(), "w").sharding, kNoIndex);
}

TEST(TorchRanksReader, ALayoutThatIsGivenNeedsNoFileBesideThem) {
  RankFolder folder = slices({1, 1});
  const MeshLayout layout = parse_layout_document(kLayout, "x.json");
  OpenOptions options;
  options.layout = &layout;
  const auto reader = folder.open_files({"slice.0.pt", "slice.1.pt"}, options);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1));
}

TEST(TorchRanksReader, SlicesOfOtherSizesThanTorchChunksAreRefused) {
  RankFolder folder = slices({2, 3});
  folder.put("layout.json", kLayout);
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kShapeMismatch);
  EXPECT_EQ(error.file(), "slice.0.pt");
  EXPECT_EQ(error.expected(), "[3]");
  EXPECT_EQ(error.found(), "[2]");
}

TEST(TorchRanksReader, SlicesAreOfTheSizesThatTheSplitOfTheirLayoutGives) {
  const std::string begin = R"({"schema": "shardctl.layout/1", "mesh": {"tp": 2}, "files": {"path": "slice.{tp}.pt"},
    "rules": [{"match": "w", "shard": [{"axis": "tp", "dim": 0, "split": )";
  RankFolder folder = slices({1, 4});
  folder.put("layout.json", begin + R"("widths", "widths": [1, 4]}]}]})");
  const auto reader = folder.open();
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 2, 3, 4));
  const Tensor& tensor = tensor_named(reader->catalog(), "w");
  EXPECT_EQ(to_string(reader->catalog().shardings[tensor.sharding].placements[0]), "S(0,widths=1+4)");
  for (const char* split :
       {R"("even")", R"("first_extra")", R"("widths", "widths": [2, 3])", R"("widths", "widths": [1, 3])"}) {
    folder.put("layout.json", begin + split + "}]}]}");
    const Error error = error_of([&] { folder.open(); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << split;
    EXPECT_EQ(error.kind(), FindingKind::kShapeMismatch) << split;
    EXPECT_EQ(error.file(), "slice.0.pt") << split;
  }
}

TEST(TorchRanksReader, ATwoDimensionalMeshOfSlicesHasReplicas) {
  RankFolder folder;
  for (int rank = 0; rank < 4; ++rank) {
    RankFileMaker maker;
    maker.put("w", maker.floats({1, 2}, {static_cast<float>(10 * (rank % 2)), 1}));
    folder.put("p" + std::to_string(rank / 2) + "t" + std::to_string(rank % 2) + ".pt", maker);
  }
  folder.put("layout.json", R"({"schema": "shardctl.layout/1", "mesh": {"dp": 2, "tp": 2},
    "files": {"path": "p{dp}t{tp}.pt"}, "rules": [{"match": "w", "shard": [{"axis": "tp", "dim": 0}]}]})");
  const auto reader = folder.open();
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(0, 1, 10, 1));
  EXPECT_EQ(tensor_named(reader->catalog(), "w").chunk_count, 4U);
}

TEST(TorchRanksReader, PlainFilesWithoutALayoutAskForOne) {
  RankFolder folder = slices({2, 2});
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kStateLayout}));
}

TEST(TorchRanksReader, PlainFilesOfDifferentNamesAreNoCheckpoint) {
  RankFolder folder = slices({2, 2});
  RankFileMaker other;
  other.put("v", other.floats({2}, {0, 1}));
  folder.put("slice.1.pt", other);
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.what(), HasSubstr("slice.0.pt and slice.1.pt contain different names"));
  EXPECT_THAT(error.hint(), HasSubstr("convert each to a safetensors file"));
}

// --- Detection ---

std::string detected(RankFolder& folder, const std::vector<std::string>& names = {}) {
  Source source = folder.source();
  if (!names.empty()) source.paths.clear();
  for (const std::string& name : names) source.paths.push_back("/c/" + name);
  return std::string(detect_format(source).traits.name);
}

TEST(TorchRanksDetection, ADamagedFileAmongThemIsNamedByTheReader) {
  RankFolder folder("2.11.0/ranks_dtensor_r2");
  folder.put("model_world_size_2_rank_1.pt", std::string());
  EXPECT_EQ(detected(folder), "torch-ranks");
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(base_name(error.file()), "model_world_size_2_rank_1.pt");
}

TEST(TorchRanksDetection, AFolderOfTorchFilesAndSeveralFiles) {
  RankFolder folder = two_ranks();
  EXPECT_EQ(detected(folder), "torch-ranks");
  EXPECT_EQ(detected(folder, {"rank_0.pt", "rank_1.pt"}), "torch-ranks");
}

TEST(TorchRanksDetection, OneFileWithSomethingCutIsOfARank) {
  RankFolder folder = two_ranks();
  EXPECT_EQ(detected(folder, {"rank_1.pt"}), "torch-ranks");
}

TEST(TorchRanksDetection, OnePlainFileIsTorchs) {
  RankFolder folder = slices({1});
  EXPECT_EQ(detected(folder, {"slice.0.pt"}), "torch");
}

TEST(TorchRanksDetection, ANameOfTorchDistributedAloneDecidesNothing) {
  RankFolder folder;
  RankFileMaker maker;
  maker.put("torch.distributed.tensor DTensor", 1);
  folder.put("x.pt", maker);
  EXPECT_EQ(detected(folder, {"x.pt"}), "torch");
}

TEST(TorchRanksDetection, FilesBesideSafetensorsAreNoRanks) {
  RankFolder folder = two_ranks();
  folder.put("model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_EQ(detected(folder), "safetensors");
}

}  // namespace
}  // namespace shard::testing
