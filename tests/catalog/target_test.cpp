#include "libshard/catalog/targets/target.h"

#include <gtest/gtest.h>

#include "libshard/catalog/selection/glob.h"
#include "libshard/map/documents/layout_document.h"
#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::add_chunked;
using test::add_object;
using test::add_tensor;
using test::expect_error;

using Lines = std::vector<std::string>;

constexpr FormatTraits kWhole = {.name = "safetensors"};
constexpr FormatTraits kTorch = {.name = "torch", .objects = true, .sharing = true, .aliases = true};
constexpr FormatTraits kItems = {.name = "dcp", .pieces = true, .single_box_items = true, .objects = true};
constexpr FormatTraits kRanks = {.name = "torch-ranks",
                                 .pieces = true,
                                 .keeps_replicas = true,
                                 .keeps_empty = true,
                                 .replicate_whole_tensors = true,
                                 .objects = true};

constexpr FormatTraits kJoined = {.name = "torch-ranks",
                                  .pieces = true,
                                  .keeps_replicas = true,
                                  .keeps_empty = true,
                                  .replicate_whole_tensors = true,
                                  .objects = true,
                                  .sharing = true,
                                  .aliases = true,
                                  .many_files = false};

Catalog target_of(const Catalog& source, const Layout& layout, const FormatTraits& traits,
                  const SelectionOptions& options = {}) {
  return make_target(source, select(source, options), layout, traits);
}

/// "name [box] rank r of rows first+strides", every chunk.
Lines chunks(const Catalog& catalog) {
  Lines lines;
  for (const Tensor& tensor : catalog.tensors) {
    for (const Chunk& chunk : catalog.chunks_of(tensor)) {
      const StoredTensor& stored = catalog.stored[chunk.stored];
      lines.push_back(std::string(tensor.name) + " " + to_string(Box(chunk.offsets, chunk.sizes)) + " rank " +
                      std::to_string(stored.rank) + " of " + to_string(stored.shape) + " from " +
                      std::to_string(chunk.first));
    }
  }
  return lines;
}

std::vector<int> ranks(const Catalog& catalog) {
  std::vector<int> all;
  for (const File& file : catalog.files) all.push_back(file.rank);
  return all;
}

/// Which file each tensor's first chunk is in.
std::vector<std::uint32_t> files(const Catalog& catalog) {
  std::vector<std::uint32_t> all;
  for (const Tensor& tensor : catalog.tensors) {
    all.push_back(catalog.storages[catalog.stored[catalog.chunks_of(tensor)[0].stored].storage].file);
  }
  return all;
}

MeshLayout mesh_layout(std::string_view mesh, const std::string& glob, const std::vector<std::string>& texts) {
  MeshLayout layout;
  layout.mesh = parse_mesh(mesh);
  MeshLayout::Rule rule{glob, {}, {}};
  layout.matching = [globs = GlobSet({glob})](std::string_view name) { return globs.matching(name); };
  for (const std::string& text : texts) rule.placements.push_back(parse_placement(text));
  layout.rules.push_back(rule);
  return layout;
}

// --- Ranks ---

TEST(RanksTarget, CutsEveryTensorThatHasTheDimension) {
  Catalog source;
  add_tensor(source, "s", {});
  add_tensor(source, "w", {5, 2});
  const Catalog target = target_of(source, RanksLayout{2}, kItems);
  EXPECT_EQ(chunks(target), (Lines{"s [] rank 0 of [] from 0", "w [0:3, 0:2] rank 0 of [3, 2] from 0",
                                   "w [3:5, 0:2] rank 1 of [2, 2] from 0"}));
  EXPECT_EQ(ranks(target), (std::vector<int>{0, 1}));
  EXPECT_EQ(target.storages[1].bytes, 24);
  EXPECT_EQ(target.storages[2].bytes, 16);
  EXPECT_EQ(target.world_size, 2);
}

TEST(RanksTarget, LeavesOutRanksThatHoldNothing) {
  Catalog source;
  add_tensor(source, "w", {5});
  EXPECT_EQ(ranks(target_of(source, RanksLayout{4}, kItems)), (std::vector<int>{0, 1, 2}));
}

TEST(RanksTarget, WritesEmptyPiecesAndUncutTensorsWhereTheFormatDoes) {
  Catalog source;
  add_tensor(source, "s", {});
  add_tensor(source, "w", {1});
  const Catalog target = target_of(source, RanksLayout{2}, kRanks);
  EXPECT_EQ(chunks(target), (Lines{"s [] rank 0 of [] from 0", "s [] rank 1 of [] from 0",
                                   "w [0:1] rank 0 of [1] from 0", "w [1:1] rank 1 of [0] from 0"}));
}

TEST(RanksTarget, StoresATensorWithoutElementsOnce) {
  Catalog source;
  add_tensor(source, "w", {0, 4});
  EXPECT_EQ(chunks(target_of(source, RanksLayout{2}, kItems)), Lines{"w [0:0, 0:4] rank 0 of [0, 4] from 0"});
}

TEST(RanksTarget, GivesObjectsAFileOfRank0) {
  Catalog source;
  add_object(source, "step", make_int(*source.arena, 1));
  EXPECT_EQ(ranks(target_of(source, RanksLayout{2}, kItems)), std::vector<int>{0});
}

TEST(RanksTarget, RefusesADimensionThatNoTensorHas) {
  Catalog source;
  add_tensor(source, "w", {5});
  expect_error(ErrorCode::kInvalidArgument, "no tensor has that dimension", [&] {
    target_of(source, RanksLayout{2, 1}, kItems);
  });
  EXPECT_NO_THROW(target_of(source, RanksLayout{2, -1}, kItems));
}

TEST(RanksTarget, RefusesNumbersOutOfRange) {
  Catalog source;
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    expect_error(ErrorCode::kInvalidArgument, "cannot shard tensors for",
                 [&] { target_of(source, RanksLayout{n}, kItems); });
  }
}

TEST(RanksTarget, RefusesFormatsOfWholeTensors) {
  Catalog source;
  add_tensor(source, "w", {5});
  expect_error(ErrorCode::kInvalidArgument, "safetensors stores only whole tensors",
               [&] { target_of(source, RanksLayout{2}, kWhole); });
}

TEST(RanksTarget, RefusesACutInsideAByte) {
  Catalog source;
  add_tensor(source, "w", {4, 6}, DType::kFloat6E2m3fn);
  expect_error(ErrorCode::kUnsupported, "inside a byte", [&] { target_of(source, RanksLayout{2, 1}, kItems); });
  EXPECT_NO_THROW(target_of(source, RanksLayout{2, 0}, kItems));
}

// --- Mesh ---

TEST(MeshTarget, KeepsTheLowestReplicaOnly) {
  Catalog source;
  add_tensor(source, "w", {4});
  const MeshLayout layout = mesh_layout("a=2,b=2", "w", {"R", "S(0)"});
  EXPECT_EQ(chunks(target_of(source, layout, kItems)),
            (Lines{"w [0:2] rank 0 of [2] from 0", "w [2:4] rank 1 of [2] from 0"}));
}

TEST(MeshTarget, KeepsEveryReplicaWhereTheFormatDoes) {
  Catalog source;
  add_tensor(source, "w", {4});
  const MeshLayout layout = mesh_layout("a=2,b=2", "w", {"R", "S(0)"});
  EXPECT_EQ(chunks(target_of(source, layout, kRanks)),
            (Lines{"w [0:2] rank 0 of [2] from 0", "w [0:2] rank 2 of [2] from 0", "w [2:4] rank 1 of [2] from 0",
                   "w [2:4] rank 3 of [2] from 0"}));
}

TEST(MeshTarget, StoresBoxesOfOneRankApartOrJoined) {
  Catalog source;
  add_tensor(source, "w", {4, 2});
  const MeshLayout layout = mesh_layout("2", "w", {"_S(0,2)"});
  EXPECT_EQ(chunks(target_of(source, layout, kItems)),
            (Lines{"w [0:1, 0:2] rank 0 of [1, 2] from 0", "w [1:2, 0:2] rank 1 of [1, 2] from 0",
                   "w [2:3, 0:2] rank 0 of [1, 2] from 0", "w [3:4, 0:2] rank 1 of [1, 2] from 0"}));
  EXPECT_EQ(chunks(target_of(source, layout, kRanks)),
            (Lines{"w [0:1, 0:2] rank 0 of [2, 2] from 0", "w [1:2, 0:2] rank 1 of [2, 2] from 0",
                   "w [2:3, 0:2] rank 0 of [2, 2] from 2", "w [3:4, 0:2] rank 1 of [2, 2] from 2"}));
}

TEST(MeshTarget, ReplicatesNamesThatNoRuleMatches) {
  Catalog source;
  add_tensor(source, "other", {4});
  add_tensor(source, "w", {4});
  const Catalog target = target_of(source, mesh_layout("2", "w", {"S(0)"}), kItems);
  EXPECT_EQ(chunks(target)[0], "other [0:4] rank 0 of [4] from 0");
}

TEST(MeshTarget, RefusesRulesThatDoNotFit) {
  Catalog source;
  add_tensor(source, "w", {4});
  expect_error(ErrorCode::kInvalidArgument, "'x' matches no tensor",
               [&] { target_of(source, mesh_layout("2", "x", {"S(0)"}), kItems); });
  expect_error(ErrorCode::kInvalidArgument, "'w' has 1 placement, the mesh has 2 axes",
               [&] { target_of(source, mesh_layout("a=2,b=2", "w", {"S(0)"}), kItems); });
}

// --- Like and keep ---

Catalog pieces_source() {
  Catalog source;
  add_chunked(source, "w", {4}, {{{0}, {1}, 2}, {{0}, {1}, 5}, {{1}, {3}, 5}});
  source.world_size = 6;
  validate_catalog(source);
  return source;
}

TEST(KeepTarget, KeepsBoxesAndTheLowestReplicasRank) {
  const Catalog source = pieces_source();
  const Catalog target = target_of(source, KeepLayout{}, kItems);
  EXPECT_EQ(chunks(target), (Lines{"w [0:1] rank 2 of [1] from 0", "w [1:4] rank 5 of [3] from 0"}));
  EXPECT_EQ(ranks(target), (std::vector<int>{2, 5}));
  EXPECT_EQ(target.world_size, 6);
}

TEST(KeepTarget, MakesWholeTensorsForFormatsWithoutPieces) {
  EXPECT_EQ(chunks(target_of(pieces_source(), KeepLayout{}, kWhole)), Lines{"w [0:4] rank -1 of [4] from 0"});
}

TEST(LikeTarget, TakesBoxesAndRanksOfTheOther) {
  const Catalog other = pieces_source();
  Catalog source;
  add_tensor(source, "w", {4});
  EXPECT_EQ(chunks(target_of(source, LikeLayout{&other}, kItems)),
            (Lines{"w [0:1] rank 2 of [1] from 0", "w [1:4] rank 5 of [3] from 0"}));
}

TEST(LikeTarget, RefusesANameThatTheOtherLacksOrAnotherShape) {
  const Catalog other = pieces_source();
  Catalog lacking, shaped;
  add_tensor(lacking, "v", {4});
  add_tensor(shaped, "w", {5});
  expect_error(ErrorCode::kInvalidArgument, "the checkpoint that provides the layout has no tensor 'v'", [&] {
    target_of(lacking, LikeLayout{&other, "old/ckpt"}, kItems);
  });
  expect_error(ErrorCode::kInvalidArgument, "has a different shape", [&] {
    target_of(shaped, LikeLayout{&other, "old/ckpt"}, kItems);
  });
  EXPECT_EQ(test::error_of([&] { target_of(shaped, LikeLayout{&other, "old/ckpt"}, kItems); }).file(), "old/ckpt");
}

// --- Whole tensors ---

Catalog sized(const std::vector<std::int64_t>& bytes) {
  Catalog source;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    add_tensor(source, std::string(1, static_cast<char>('a' + i)), {bytes[i]}, DType::kUint8);
  return source;
}

TEST(WholeTarget, StoresEachTensorRowMajorInOneFile) {
  Catalog source = sized({3, 4});
  const Catalog target = target_of(source, WholeLayout{}, kWhole);
  EXPECT_EQ(files(target), (std::vector<std::uint32_t>{0, 0}));
  EXPECT_EQ(target.files.size(), 1U);
  EXPECT_EQ(target.storages[1].bytes, 4);
  EXPECT_EQ(target.tensors[1].source, 1U);
}

TEST(WholeTarget, HasOneFileWithoutTensors) { EXPECT_EQ(target_of(Catalog(), WholeLayout{}, kWhole).files.size(), 1U); }

TEST(SizeTarget, FillsFilesAsHuggingFaceDoes) {  // The example of huggingface_hub's docstring.
  const Catalog target = target_of(sized({6, 6, 2, 6, 2, 2}), SizeLayout{10}, kWhole);
  EXPECT_EQ(files(target), (std::vector<std::uint32_t>{0, 1, 1, 2, 2, 2}));
}

TEST(SizeTarget, PutsATensorAsLargeAsAFileBehindThoseBeforeIt) {
  const Catalog target = target_of(sized({4, 10, 4}), SizeLayout{10}, kWhole);
  EXPECT_EQ(files(target), (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST(SizeTarget, GivesATooLargeTensorAFileAndGoesOnWithTheOther) {
  const Catalog target = target_of(sized({2, 20, 3, 6}), SizeLayout{10}, kWhole);
  EXPECT_EQ(files(target), (std::vector<std::uint32_t>{1, 0, 1, 2}));
}

TEST(ShardsTarget, BalancesContiguousRuns) {
  const Catalog target = target_of(sized({4, 4, 8, 1, 1, 6}), ShardsLayout{3}, kWhole);
  EXPECT_EQ(files(target), (std::vector<std::uint32_t>{0, 0, 1, 2, 2, 2}));
}

TEST(ShardsTarget, GivesATensorAcrossTheBorderToTheFileThatHasMoreOfIt) {
  EXPECT_EQ(files(target_of(sized({4, 6, 2}), ShardsLayout{2}, kWhole)), (std::vector<std::uint32_t>{0, 1, 1}));
  EXPECT_EQ(files(target_of(sized({2, 6, 4}), ShardsLayout{2}, kWhole)), (std::vector<std::uint32_t>{0, 0, 1}));
}

TEST(ShardsTarget, MakesAsManyFilesAsAskedFor) {
  EXPECT_EQ(files(target_of(sized({0, 0, 100, 0}), ShardsLayout{4}, kWhole)), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(files(target_of(sized({100, 1, 1}), ShardsLayout{2}, kWhole)), (std::vector<std::uint32_t>{0, 1, 1}));
  EXPECT_EQ(files(target_of(sized({1, 1, 100}), ShardsLayout{2}, kWhole)), (std::vector<std::uint32_t>{0, 0, 1}));
  EXPECT_EQ(files(target_of(sized({4, 4, 0}), ShardsLayout{2}, kWhole)), (std::vector<std::uint32_t>{0, 1, 1}));
}

TEST(ShardsTarget, MakesNoMoreFilesThanTensors) {
  EXPECT_EQ(target_of(sized({1, 1}), ShardsLayout{5}, kWhole).files.size(), 2U);
}

TEST(ShardsTarget, GivesPiecesFormatsARankPerFile) {
  const Catalog target = target_of(sized({1, 1}), ShardsLayout{2}, kItems);
  EXPECT_EQ(chunks(target), (Lines{"a [0:1] rank 0 of [1] from 0", "b [0:1] rank 1 of [1] from 0"}));
}

TEST(ShardsTarget, RefusesLessThanOne) {
  expect_error(ErrorCode::kInvalidArgument, "cannot spread tensors over 0 files",
               [] { target_of(sized({1}), ShardsLayout{0}, kWhole); });
  expect_error(ErrorCode::kInvalidArgument, "cannot limit files to 0 bytes",
               [] { target_of(sized({1}), SizeLayout{0}, kWhole); });
}

// --- Additional content ---

TEST(Target, CopiesMetadataLocationsAndRequiresGrad) {
  Catalog source;
  add_tensor(source, "w", {1});
  source.metadata["k"] = "v";
  source.locations = {"cpu", "cuda:0"};
  source.storages[0].location = 1;
  source.stored[0].requires_grad = true;
  const Catalog target = target_of(source, WholeLayout{}, kTorch);
  EXPECT_EQ(target.metadata.at("k"), "v");
  EXPECT_EQ(target.locations[target.storages[0].location], "cuda:0");
  EXPECT_TRUE(target.stored[0].requires_grad);
}

TEST(Target, SizesStoragesByTheWantedDtype) {
  Catalog source;
  add_tensor(source, "w", {6});
  const Catalog target = target_of(source, WholeLayout{}, kWhole, {.cast = {"w=bfloat16"}});
  EXPECT_EQ(target.storages[0].bytes, 12);
  EXPECT_EQ(target.tensors[0].dtype, DType::kBfloat16);
  EXPECT_EQ(target.stored[0].dtype, DType::kBfloat16);
}

TEST(Target, RefusesObjectsWhereTheFormatHasNone) {
  Catalog source;
  for (const char* name : {"a", "b", "c", "d"}) add_object(source, name, make_int(*source.arena, 1));
  const Error error = test::error_of([&] { target_of(source, WholeLayout{}, kWhole); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(error.what(), "safetensors cannot store objects, and the source has 4: 'a', 'b', 'c' and 1 more");
  EXPECT_EQ(error.suggestions(), std::vector{Suggestion{Remedy::kDropObjects}});
  EXPECT_NO_THROW(target_of(source, WholeLayout{}, kWhole, {.keep_objects = false}));
}

Catalog two_paths() {
  Catalog source;
  Value* flat = make_tensor(*source.arena, add_tensor(source, "a.b", {1}));
  Value* nested =
      make_tensor(*source.arena, add_tensor(source, "a.b", {2}, DType::kFloat32, test::make_path(source, {"a", "b"})));
  Value* const inner[] = {make_string(*source.arena, "b"), nested};
  Value* const items[] = {make_string(*source.arena, "a.b"), flat, make_string(*source.arena, "a"),
                          make_list(*source.arena, ValueKind::kDict, inner)};
  source.root = make_list(*source.arena, ValueKind::kDict, items);
  validate_catalog(source);
  return source;
}

TEST(Target, KeepsTwoPathsOfOneNameWithTheTree) {
  const Catalog source = two_paths();
  const Catalog target = target_of(source, WholeLayout{}, kTorch);
  EXPECT_EQ(target.tensors.size(), 2U);
  EXPECT_EQ(target.root, source.root);
}

TEST(Target, RefusesTwoPathsOfOneNameElsewhere) {
  const Catalog source = two_paths();
  expect_error(ErrorCode::kUnsupported, "two paths are named 'a.b': ['a.b'] and ['a', 'b']",
               [&] { target_of(source, WholeLayout{}, kWhole); });
  expect_error(ErrorCode::kUnsupported, "two paths", [&] { target_of(source, RanksLayout{2}, kItems); });
}

TEST(Target, PrunesTheTreeToTheSelection) {
  Catalog source;
  Value* a = make_tensor(*source.arena, add_tensor(source, "a", {1}));
  Value* b = make_tensor(*source.arena, add_tensor(source, "b", {1}));
  Value* const items[] = {make_string(*source.arena, "a"), a, make_string(*source.arena, "b"), b};
  source.root = make_list(*source.arena, ValueKind::kDict, items);
  validate_catalog(source);
  const Catalog target = target_of(source, WholeLayout{}, kTorch, {.exclude = {"a"}});
  ASSERT_EQ(target.root->items().size(), 2U);
  EXPECT_EQ(target.root->items()[0]->text(), "b");
  EXPECT_EQ(target.root->items()[1]->number, 0);
}

TEST(Target, RebuildsATreeWhereTheSourceHasNone) {
  Catalog source;
  add_tensor(source, "x.w", {1});
  const Catalog target = target_of(source, WholeLayout{}, kTorch);
  ASSERT_NE(target.root, nullptr);
  EXPECT_EQ(target.root->items()[0]->text(), "x.w");
}

TEST(Target, HasNoTreeWhereTheFormatHasNoObjects) {
  Catalog source;
  add_tensor(source, "w", {1});
  EXPECT_EQ(target_of(source, WholeLayout{}, kWhole).root, nullptr);
}

TEST(Target, SaysThatADocumentsFilePathIsNotUsed) {
  Catalog source;
  add_tensor(source, "w", {4});
  validate_catalog(source);
  const MeshLayout layout = parse_layout_document(
      R"({"schema": "shardctl.layout/1", "mesh": {"tp": 2}, "files": {"path": "r{tp}"},
          "rules": [{"match": "w", "shard": [{"axis": "tp", "dim": 0}]}]})",
      "layout.json");
  EXPECT_EQ(target_of(source, layout, kItems).warnings,
            Lines{"ignored the layout document's files.path 'r{tp}': dcp names its files by rank"});
}

// --- Words, and files of all ranks ---

/// "words of the tensor: axes ranks placements".
std::string words(const Catalog& catalog, std::string_view name) {
  const Tensor& tensor = *catalog.find(name);
  if (tensor.sharding == kNoIndex) return "none";
  const Sharding& sharding = catalog.shardings[tensor.sharding];
  std::string text;
  for (const MeshAxis& axis : sharding.mesh) text += axis.name + "=" + std::to_string(axis.size) + " ";
  for (const std::int64_t rank : sharding.ranks) text += std::to_string(rank) + " ";
  for (const Placement& placement : sharding.placements) text += to_string(placement) + " ";
  return text;
}

void set_words(Catalog& catalog, std::string_view name, Sharding sharding) {
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.name == name) tensor.sharding = static_cast<std::uint32_t>(catalog.shardings.size());
  }
  catalog.shardings.push_back(std::move(sharding));
}

TEST(TargetWords, AreThoseOfTheRanksLayoutWithDimensionsResolved) {
  Catalog source;
  add_tensor(source, "s", {});
  add_tensor(source, "w", {5, 2});
  const Catalog target = target_of(source, RanksLayout{2, -1}, kItems);
  EXPECT_EQ(words(target, "s"), "=2 R ");
  EXPECT_EQ(words(target, "w"), "=2 S(1) ");
  EXPECT_EQ(target.shardings.size(), 2U);
}

TEST(TargetWords, AreThoseOfTheMeshEachOnce) {
  Catalog source;
  add_tensor(source, "a", {4, 4});
  add_tensor(source, "b", {6, 4});
  add_tensor(source, "c", {4});
  const Catalog target = target_of(source, mesh_layout("dp=2,tp=2", "**", {"_S(-1,2)", "S(1)"}), kRanks);
  EXPECT_EQ(words(target, "a"), "dp=2 tp=2 _S(1,2) S(1) ");
  EXPECT_EQ(words(target, "b"), words(target, "a"));
  EXPECT_EQ(words(target, "c"), "dp=2 tp=2 _S(0,2) R ");
  EXPECT_EQ(target.shardings.size(), 2U);
}

TEST(TargetWords, AreMissingWhereAFasterAxisCutsFirst) {
  Catalog source;
  add_tensor(source, "w", {4, 4});
  MeshLayout layout = mesh_layout("dp=2,tp=2", "**", {"S(0)", "S(0)"});
  layout.rules[0].order = {1, 0};
  EXPECT_EQ(words(target_of(source, layout, kRanks), "w"), "none");
  layout.rules[0].placements[1].dim = 1;
  EXPECT_EQ(words(target_of(source, layout, kRanks), "w"), "dp=2 tp=2 S(0) S(1) ");
}

TEST(TargetWords, FollowTheCheckpointThatIsKeptAndJoinItsBoxes) {
  Catalog source;
  add_chunked(source, "w", {4}, {{{0}, {1}, 0}, {{1}, {1}, 1}, {{2}, {1}, 0}, {{3}, {1}, 1}});
  set_words(source, "w", {{{"dp", 2}}, {}, {{Placement::kStridedShard, 0, 2}}});
  source.world_size = 2;
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(words(target, "w"), "dp=2 _S(0,2) ");
  EXPECT_EQ(chunks(target), (Lines{"w [0:1] rank 0 of [2] from 0", "w [1:2] rank 1 of [2] from 0",
                                   "w [2:3] rank 0 of [2] from 1", "w [3:4] rank 1 of [2] from 1"}));
}

TEST(TargetWords, ObeyTheRanksOfTheMesh) {
  Catalog source;
  add_chunked(source, "w", {3}, {{{0}, {2}, 1}, {{2}, {1}, 0}});
  set_words(source, "w", {{{"", 2}}, {1, 0}, {{Placement::kShard, 0, 1}}});
  source.world_size = 2;
  EXPECT_EQ(chunks(target_of(source, KeepLayout{}, kJoined)),
            (Lines{"w [0:2] rank 1 of [2] from 0", "w [2:3] rank 0 of [1] from 0"}));
}

TEST(TargetWords, OfReplicasOnAPermutedMeshTheLowestRankIsNoReplica) {
  constexpr FormatTraits kLowest = {.name = "hdf5", .pieces = true};
  Catalog source;
  add_chunked(source, "w", {2}, {{{0}, {1}, 3}, {{0}, {1}, 1}, {{1}, {1}, 2}, {{1}, {1}, 0}});
  set_words(source, "w", {{{"a", 2}, {"b", 2}}, {3, 2, 1, 0}, {{}, {Placement::kShard, 0, 1}}});
  source.world_size = 4;
  EXPECT_EQ(chunks(target_of(source, KeepLayout{}, kLowest)),
            (Lines{"w [0:1] rank 1 of [1] from 0", "w [1:2] rank 0 of [1] from 0"}));
}

TEST(TargetWords, ThatCannotBeAreIgnored) {
  Catalog source;
  add_chunked(source, "w", {2}, {{{0}, {1}, 1}, {{1}, {1}, 0}});
  set_words(source, "w", {{{"", 2}}, {0, 7}, {{Placement::kShard, 0, 1}}});
  source.world_size = 2;
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(words(target, "w"), "none");
  EXPECT_EQ(chunks(target), (Lines{"w [0:1] rank 1 of [1] from 0", "w [1:2] rank 0 of [1] from 0"}));
}

TEST(TargetWords, AreFoundForBoxesOfTorchChunkAndAddWhatIsEmpty) {
  Catalog source;
  add_chunked(source, "w", {5, 2}, {{{0, 0}, {2, 2}, 0}, {{2, 0}, {2, 2}, 1}, {{4, 0}, {1, 2}, 2}});
  source.world_size = 4;
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(words(target, "w"), "=4 S(0) ");
  EXPECT_EQ(chunks(target).back(), "w [5:5, 0:2] rank 3 of [0, 2] from 0");
  EXPECT_EQ(words(target_of(source, KeepLayout{}, kItems), "w"), "none");
}

TEST(TargetWords, AreNotFoundForOtherBoxes) {
  Catalog source;
  add_chunked(source, "order", {4}, {{{0}, {2}, 1}, {{2}, {2}, 0}});
  add_chunked(source, "size", {4}, {{{0}, {3}, 0}, {{3}, {1}, 1}});
  source.world_size = 2;
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(words(target, "order"), "none");
  EXPECT_EQ(words(target, "size"), "none");
}

TEST(AllRanksTarget, HasUncutTensorsOfAKeptSourceEverywhere) {
  Catalog source;
  add_chunked(source, "w", {2}, {{{0}, {2}, 1}});
  source.world_size = 3;
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(chunks(target),
            (Lines{"w [0:2] rank 0 of [2] from 0", "w [0:2] rank 1 of [2] from 0", "w [0:2] rank 2 of [2] from 0"}));
  EXPECT_EQ(ranks(target), (std::vector<int>{0, 1, 2}));
}

TEST(AllRanksTarget, HasAFileForRanksThatHoldNothing) {
  Catalog source;
  add_object(source, "step", make_int(*source.arena, 1));
  EXPECT_EQ(ranks(target_of(source, RanksLayout{3}, kJoined)), (std::vector<int>{0, 1, 2}));
}

TEST(AllRanksTarget, OfASourceWithoutRanksIsOne) {
  Catalog source;
  add_tensor(source, "w", {2});
  const Catalog target = target_of(source, KeepLayout{}, kJoined);
  EXPECT_EQ(ranks(target), std::vector<int>{0});
  EXPECT_EQ(target.world_size, 1);
}

TEST(AllRanksTarget, RefusesFilesOfWholeTensors) {
  Catalog source;
  add_tensor(source, "w", {2});
  for (const Layout& layout : {Layout(ShardsLayout{2}), Layout(SizeLayout{100})}) {
    expect_error(ErrorCode::kInvalidArgument, "one file per rank", [&] { target_of(source, layout, kJoined); });
  }
}

TEST(AllRanksTarget, KeepsAliasesThatAreCutAlike) {
  Catalog source;
  const std::uint32_t storage = test::add_storage(source, 16);
  test::add_view(source, "a", storage, DType::kFloat32, {4});
  test::add_view(source, "b", storage, DType::kFloat32, {4});
  validate_catalog(source);
  const Catalog alike = target_of(source, RanksLayout{2}, kJoined);
  EXPECT_EQ(alike.storages.size(), 2U);
  EXPECT_TRUE(alike.warnings.empty());
  const Catalog apart = target_of(source, mesh_layout("x=2", "a", {"S(0)"}), kJoined);
  EXPECT_EQ(apart.storages.size(), 4U);
  EXPECT_EQ(
      apart.warnings,
      Lines{"1 aliases are stored as separate copies because they are sharded differently from their originals: 'b'"});
}

TEST(AllRanksTarget, StoresOtherViewsOfOneStorageApart) {
  Catalog source;
  const std::uint32_t storage = test::add_storage(source, 16);
  test::add_view(source, "a", storage, DType::kFloat32, {4});
  test::add_view(source, "b", storage, DType::kFloat32, {2});
  validate_catalog(source);
  EXPECT_EQ(target_of(source, RanksLayout{2}, kJoined).warnings,
            Lines{"2 tensors no longer share storage with others: 'a', 'b'"});
}

}  // namespace
}  // namespace shard
