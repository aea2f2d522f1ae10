#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"
#include "formats/state/rank_state.h"
#include "libshard/core/error.h"

namespace shard::checkpoint {
namespace {

using ::testing::ElementsAre;

using Keys = std::vector<std::pair<std::string, Value*>>;

/// Builds the states of ranks.
class RankStates : public ::testing::Test {
 protected:
  Value* dict(const Keys& items) {
    std::vector<Value*> all;
    for (const auto& [key, value] : items) all.insert(all.end(), {make_string(arena_, key), value});
    return make_list(arena_, ValueKind::kDict, all);
  }
  /// A dict with integer keys.
  Value* numbered(const std::vector<std::pair<int, Value*>>& items) {
    std::vector<Value*> all;
    for (const auto& [key, value] : items) all.insert(all.end(), {make_int(arena_, key), value});
    return make_list(arena_, ValueKind::kDict, all);
  }
  Value* number(int value) { return make_int(arena_, value); }
  Value* tensor(int number) { return make_tensor(arena_, number); }

  static RankState state(const Value& root, std::vector<TensorInfo> tensors) {
    pickle::Dumper dumper({.protocol = 4, .tensor = [](pickle::Dumper& out, const Value& value) {
                             out.integer(value.number);
                             out.op(pickle::kOpBinPersid);
                           }});
    dumper.value(root);
    return {dumper.finish(), std::move(tensors)};
  }
  /// Rows [begin, end) of a float32 tensor of 4 x 2.
  static TensorInfo rows(std::int64_t begin, std::int64_t end) {
    return {.dtype = DType::kFloat32,
            .is_sharded = true,
            .shape = {4, 2},
            .location = "cpu",
            .boxes = {{{begin, 0}, {end - begin, 2}}}};
  }
  static TensorInfo plain(std::vector<std::int64_t> shape) {
    const std::vector<std::int64_t> zeros(shape.size());
    return {.dtype = DType::kFloat32, .shape = shape, .location = "cpu", .boxes = {{zeros, shape}}};
  }

  static std::vector<std::string> names(const Catalog& catalog) {
    std::vector<std::string> found;
    for (const Tensor& each : catalog.tensors) found.emplace_back(each.name);
    for (const Object& each : catalog.objects) found.emplace_back(each.name);
    return found;
  }

  Arena arena_;
};

TEST_F(RankStates, SurviveTheirTransfer) {
  RankState own = state(*dict({{"w", tensor(0)}}), {rows(2, 4)});
  own.tensors[0].sharding = Sharding{{{"dp", 2}}, {1, 0}, {parse_placement("S(0)")}};
  const RankState again = rank_state(to_bytes(own));
  EXPECT_EQ(again.tree, own.tree);
  EXPECT_EQ(again.tensors[0].boxes[0].offsets, own.tensors[0].boxes[0].offsets);
  EXPECT_EQ(again.tensors[0].sharding, own.tensors[0].sharding);
  EXPECT_TRUE(are_dtensors({again}));
  EXPECT_FALSE(are_dtensors({again, state(*dict({}), {rows(0, 2)})}));
}

TEST_F(RankStates, ShardsOfAllRanksAreOneTensor) {
  const Value& root = *dict({{"w", tensor(0)}, {"step", number(7)}});
  const std::vector<RankState> ranks{state(root, {rows(0, 2)}), state(root, {rows(2, 4)})};
  const MergedState merged = merge_states(ranks, 1, {});
  EXPECT_THAT(names(merged.catalog), ElementsAre("w", "step"));
  ASSERT_EQ(merged.catalog.tensors[0].chunk_count, 2U);
  EXPECT_EQ(merged.catalog.chunks[1].offsets[0], 2);
  EXPECT_EQ(merged.catalog.stored_of(merged.catalog.chunks[1]).rank, 1);
  ASSERT_EQ(merged.held.size(), 1U);
  EXPECT_EQ(merged.held[0].box, 0U);
}

TEST_F(RankStates, APlainTensorIsWrittenByTheRankWithTheFewestBytes) {
  const Value& root = *dict({{"a", tensor(0)}, {"b", tensor(1)}});
  const std::vector<RankState> ranks{state(root, {plain({9}), plain({5})}), state(root, {plain({9}), plain({5})})};
  const MergedState merged = merge_states(ranks, 0, {});
  EXPECT_EQ(merged.catalog.stored_of(merged.catalog.tensors[0]).rank, 0);
  EXPECT_EQ(merged.catalog.stored_of(merged.catalog.tensors[1]).rank, 1);
}

TEST_F(RankStates, EqualNumbersAreOneTensorWithTwoNames) {
  const std::vector<RankState> ranks{
      state(*dict({{"a", tensor(0)}, {"b", tensor(0)}, {"c", tensor(1)}}), {plain({3}), plain({3})})};
  const Catalog& catalog = merge_states(ranks, 0, {}).catalog;
  EXPECT_EQ(catalog.tensors[1].alias_of, 0U);
  EXPECT_EQ(catalog.tensors[2].alias_of, kNoIndex);
}

TEST_F(RankStates, KeysOfOtherRanksFollow) {
  const std::vector<RankState> ranks{state(*dict({{"a", number(1)}}), {}),
                                     state(*dict({{"b", number(2)}, {"a", number(3)}}), {})};
  const Catalog& catalog = merge_states(ranks, 0, {}).catalog;
  EXPECT_THAT(names(catalog), ElementsAre("a", "b"));
  EXPECT_EQ(catalog.objects[0].value->number, 1);
}

TEST_F(RankStates, NumberedDictsBecomeListsOnRequest) {
  const std::vector<RankState> ranks{
      state(*dict({{"list", numbered({{1, number(5)}})}, {"gap", numbered({{0, number(1)}, {2, number(2)}})}}), {}),
      state(*dict({{"list", numbered({{0, dict({{"x", number(6)}})}})}}), {})};
  const auto list = [](const MergedState& merged) { return find_key(*merged.catalog.root, "list"); };
  EXPECT_EQ(list(merge_states(ranks, 0, {}))->kind, ValueKind::kDict);
  const MergedState merged = merge_states(ranks, 0, {.numbered_lists = true});
  ASSERT_EQ(list(merged)->kind, ValueKind::kList);
  EXPECT_EQ(list(merged)->items()[1]->number, 5);
  EXPECT_EQ(find_key(*merged.catalog.root, "gap")->kind, ValueKind::kDict);
}

TEST_F(RankStates, ContradictionsAreNamed) {
  const auto fault = [](const std::vector<RankState>& ranks) -> std::string {
    try {
      merge_states(ranks, 0, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.tensor() + ": " + error.what();
    }
    return "none";
  };
  const Value& root = *dict({{"w", tensor(0)}});
  EXPECT_THAT(fault({state(root, {plain({3})}), state(root, {plain({4})})}),
              ::testing::HasSubstr("w: ranks contradict"));
  EXPECT_THAT(fault({state(root, {plain({3})}), state(*dict({{"w", number(0)}}), {})}),
              ::testing::HasSubstr("tensors on one"));
  EXPECT_THAT(fault({state(root, {rows(0, 2)}), state(root, {rows(3, 4)})}), ::testing::StartsWith("w: "));
}

}  // namespace
}  // namespace shard::checkpoint
