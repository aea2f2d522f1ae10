// The dtypes of a model that is exported as its config states.
#include "libshard/export/auto_dtypes.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/catalog/build.h"

namespace shard {
namespace {

constexpr DType kBf16 = DType::kBfloat16, kF32 = DType::kFloat32;

struct Stored {
  std::string name;
  test::Numbers shape;
  DType dtype;
};

Catalog catalog_of_stored(const std::vector<Stored>& tensors) {
  Catalog catalog;
  for (const Stored& each : tensors) test::add_tensor(catalog, each.name, each.shape, each.dtype);
  validate_catalog(catalog);
  return catalog;
}

/// The dtypes by name.
std::map<std::string, DType> exported(const std::vector<Stored>& model, const std::vector<Stored>& reference = {}) {
  const Catalog source = catalog_of_stored(model), other = catalog_of_stored(reference);
  const Selection selection = select(source, {});
  const std::vector<DType> dtypes =
      auto_dtypes(selection.tensors, source, find_quantized(source), reference.empty() ? nullptr : &other, kBf16);
  std::map<std::string, DType> named;
  for (std::size_t i = 0; i < dtypes.size(); ++i) named[std::string(selection.tensors[i].name)] = dtypes[i];
  return named;
}

TEST(AutoDtypes, NarrowATrainingCheckpointThatIsFloat32Throughout) {
  const auto dtypes = exported({{"up", {8, 8}, kF32}, {"norm", {8}, kF32}, {"ids", {8}, DType::kInt64}});
  EXPECT_EQ(dtypes, (std::map<std::string, DType>{{"ids", DType::kInt64}, {"norm", kBf16}, {"up", kBf16}}));
}

TEST(AutoDtypes, KeepTheFewWiderTensorsOfAModelsFolder) {
  const auto dtypes = exported({{"up", {8, 8}, kBf16}, {"router", {2, 8}, kF32}, {"half", {8}, DType::kFloat16}});
  EXPECT_EQ(dtypes, (std::map<std::string, DType>{{"half", kBf16}, {"router", kF32}, {"up", kBf16}}));
}

TEST(AutoDtypes, CountElementsWhereManySmallTensorsAreWider) {
  const auto dtypes =
      exported({{"in_proj", {64, 64}, kBf16}, {"A_log", {8}, kF32}, {"D", {8}, kF32}, {"norm", {8}, kF32}});
  EXPECT_EQ(dtypes.at("A_log"), kF32);
}

TEST(AutoDtypes, FollowTheReferenceOfATrainingCheckpoint) {
  const std::vector<Stored> masters{{"up", {8, 8}, kF32}, {"router", {2, 8}, DType::kFloat64}, {"norm", {8}, kF32}};
  const auto dtypes = exported(masters, {{"up", {8, 8}, kBf16}, {"router", {2, 8}, kF32}, {"norm", {8}, kBf16}});
  EXPECT_EQ(dtypes, (std::map<std::string, DType>{{"norm", kBf16}, {"router", kF32}, {"up", kBf16}}));
}

TEST(AutoDtypes, FollowTheConfigWhereTheReferenceIsWiderThroughout) {
  const std::vector<Stored> wide{{"up", {8, 8}, kF32}, {"norm", {8}, kF32}};
  EXPECT_EQ(exported(wide, wide), (std::map<std::string, DType>{{"norm", kBf16}, {"up", kBf16}}));
}

TEST(AutoDtypes, KeepTheCorrectionBiasOfRouters) {
  const auto dtypes = exported({{"up", {8, 8}, kF32}, {"mlp.gate.e_score_correction_bias", {8}, kF32}});
  EXPECT_EQ(dtypes.at("mlp.gate.e_score_correction_bias"), kF32);
  EXPECT_EQ(dtypes.at("up"), kBf16);
}

TEST(AutoDtypes, LeaveQuantizedModulesAndDoNotCountThem) {
  const auto dtypes = exported({{"q.weight", {64, 1}, DType::kUint8},
                                {"q.weight.absmax", {64}, kF32},
                                {"q.weight.quant_map", {16}, kF32},
                                {"embed", {2, 2}, kBf16},
                                {"norm", {2}, kF32}});
  EXPECT_EQ(dtypes.at("q.weight.absmax"), kF32);
  EXPECT_EQ(dtypes.at("q.weight.quant_map"), kF32);
  EXPECT_EQ(dtypes.at("norm"), kF32);  // Beside the larger embedding, which is bfloat16.
}

}  // namespace
}  // namespace shard
