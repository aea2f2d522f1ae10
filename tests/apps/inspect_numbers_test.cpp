#include "apps/shardctl/source/inspect_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shard::app {
namespace {

SelectedTensor tensor(std::uint32_t source, std::string_view name) { return {source, DType::kUint8, name, {}}; }
SelectedObject object(std::string_view name) { return {0, name, {}}; }

TEST(RepeatedNames, AreThoseOfTensorsAndObjects) {
  Selection selection;
  selection.tensors = {tensor(0, "a"), tensor(1, "a"), tensor(2, "b"), tensor(3, "c")};
  selection.objects = {object("b"), object("d"), object("e"), object("e")};
  EXPECT_THAT(repeated_names(selection), ::testing::ElementsAre("a", "b", "e"));
}

/// Three names of one tensor: 1 and 2 are aliases of 0.
class AliasNames : public ::testing::Test {
 protected:
  AliasNames() {
    catalog.tensors.resize(3);
    catalog.tensors[1].alias_of = catalog.tensors[2].alias_of = 0;
  }
  Catalog catalog;
  Selection selection;
};

TEST_F(AliasNames, AreResultingNames) {
  selection.tensors = {tensor(0, "m.a"), tensor(1, "m.b")};
  const Aliases aliases(catalog, selection);
  EXPECT_EQ(aliases.first_of(selection.tensors[0]), std::nullopt);
  EXPECT_EQ(aliases.first_of(selection.tensors[1]), "m.a");
}

TEST_F(AliasNames, BeginWithTheFirstThatIsChosen) {
  selection.tensors = {tensor(2, "b"), tensor(1, "c")};
  const Aliases aliases(catalog, selection);
  EXPECT_EQ(aliases.first_of(selection.tensors[0]), std::nullopt);
  EXPECT_EQ(aliases.first_of(selection.tensors[1]), "b");
}

}  // namespace
}  // namespace shard::app
