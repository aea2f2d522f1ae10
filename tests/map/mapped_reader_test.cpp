/// The checks of a mapped source's bytes: replicas and padding.
#include "libshard/map/passes/mapped_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "tests/compute/stored.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::HasSubstr;

ModelMap map_of_rules(const std::string& rules) {
  MapDocument document = parse_map_document(R"({"schema": "shardctl.layout/1", "rules": [)" + rules + "]}", "map.json");
  MapVariables variables(document, {});
  return {std::move(document), std::move(variables)};
}

constexpr const char* kTied = R"({"logical": "e", "stored": "core.e"}, {"alias": "e", "stored": "head"})";
constexpr const char* kPadded = R"({"logical": "e", "stored": "core.e", "pad": {"to": 4, "true": 2}})";

TEST(MappedReader, ATensorThatWasRefusedIsRefusedAgain) {
  test::Stored tied, padded;
  tied.add("core.e", DType::kFloat32, {2}, std::vector<float>{1, 2});
  tied.add("head", DType::kFloat32, {2}, std::vector<float>{1, 9});
  padded.add("core.e", DType::kFloat32, {4}, std::vector<float>{1, 2, 0, 7});
  for (const bool is_tied : {true, false}) {
    MappedReader reader((is_tied ? tied : padded).reader(), map_of_rules(is_tied ? kTied : kPadded));
    for (int i = 0; i < 2; ++i) {
      const Error error = test::error_of([&] { test::read_tensor(reader, "e"); });
      EXPECT_EQ(error.code(), ErrorCode::kCorruption);
      EXPECT_THAT(error.what(), HasSubstr(is_tied ? "replicas of 'e' differ" : "the padding of 'core.e' is not zero"));
      if (!is_tied) continue;
      EXPECT_THAT(error.why(), ::testing::AllOf(HasSubstr("'core.e' of"), HasSubstr("'head' of")));
    }
  }
}

TEST(MappedReader, ContainersAreThoseOfTheSource) {
  test::Stored stored;
  stored.add("a", DType::kFloat32, {2}, std::vector<float>{1, 2});
  auto mapped = std::make_unique<MappedReader>(stored.reader(), map_of_rules(R"({"match": "a"})"));
  test::NoReport report;
  EXPECT_TRUE(mapped->check_container(0, report));
  const PaddedReader padded(std::move(mapped), {});
  EXPECT_TRUE(padded.check_container(0, report));
  EXPECT_FALSE(padded.check_container(1, report));  // The file of zeros.
}

TEST(MappedReader, TransposedReplicasAreComparedInBlocks) {
  constexpr std::int64_t kSide = 500;
  std::vector<float> numbers(kSide * kSide);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  for (const bool is_equal : {true, false}) {
    test::Stored stored;
    stored.add("core.e", DType::kFloat32, {kSide, kSide}, numbers);
    if (!is_equal) numbers.back() = -1;
    stored.add("head", DType::kFloat32, {kSide, kSide}, numbers);
    auto inner = stored.reader();
    const test::StoredReader& counted = *inner;
    MappedReader reader(std::move(inner), map_of_rules(R"({"logical": "e", "stored": "core.e", "permute": "transpose"},
        {"alias": "e", "stored": "head", "permute": "transpose"})"));
    const std::uint32_t first = 0;
    if (is_equal) {
      reader.locate(std::span(&first, 1));
    } else {
      EXPECT_EQ(test::error_of([&] { reader.locate(std::span(&first, 1)); }).code(), ErrorCode::kCorruption);
    }
    EXPECT_LT(counted.reads(), 4 * kSide);
  }
}

}  // namespace
}  // namespace shard
