// Moves of boxes when placements change, compared with tensors that are sharded by torch's own chunk. No ranks run
// here.
#include "shardtorch/dtensor/redistribution_plan.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "tests/shardtorch/dtensor_fixture.h"

namespace shard::test {
namespace {

using dtensor::BoxCopy;
using dtensor::plan_redistribution;
using dtensor::RedistributionPlan;

std::int64_t ranks_of(const Sizes& mesh) { return c10::multiply_integers(mesh); }

TEST(DTensorParts, AreThoseOfTorchChunk) {
  RandomCases random(1);
  for (int i = 0; i < 300; ++i) {
    const Sizes mesh = random.mesh(1 + random.below(8)), shape = random.shape();
    const TensorLayout layout{shape, mesh, random.placements(mesh.size(), shape.size())};
    const at::Tensor whole = numbered(shape);
    const auto parts = dtensor::parts_of(layout);
    for (std::int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
      const auto& part = parts[static_cast<std::size_t>(rank)];
      const at::Tensor expected = obvious_part(whole, mesh, layout.placements, rank);
      ASSERT_EQ(expected.sizes(), at::IntArrayRef(part.local_sizes)) << to_string(layout);
      at::Tensor found = at::full(part.local_sizes, -1, at::kDouble);
      for (std::size_t b = 0; b < part.boxes.size(); ++b) {
        const Box& box = part.boxes[b];
        narrow_tensor_by_index(found, part.local_offsets[b], dtensor::sizes_of(box))
            .copy_(narrow_tensor_by_index(whole, dtensor::offsets_of(box), dtensor::sizes_of(box)));
      }
      ASSERT_TRUE(found.equal(expected)) << to_string(layout) << " of rank " << rank;
    }
  }
}

TEST(DTensorParts, OfOneRankCostNothingForTheOthers) {
  const TensorLayout layout{{1 << 20, 4}, {std::int64_t{1} << 40, 2}, {CutBy{0}, CutBy{1}}};
  const RankPiece part = dtensor::part_of(layout, 5);
  EXPECT_EQ(part.local_sizes, (Sizes{1, 2}));
  ASSERT_EQ(part.boxes.size(), 1U);
  EXPECT_EQ(dtensor::offsets_of(part.boxes[0]), at::IntArrayRef({2, 2}));
}

/// Runs the plans of all ranks on all local tensors: the new ones, and how often each element was received.
struct Simulated {
  at::Tensor local, received;
};
Simulated simulate(const TensorLayout& from, const Placements& to, std::int64_t rank,
                   const std::vector<at::Tensor>& locals) {
  const RedistributionPlan plan = plan_redistribution(from, to, rank);
  Simulated result{at::zeros(plan.new_sizes, at::kDouble), at::zeros(plan.new_sizes, at::kDouble)};
  for (std::int64_t source = 0; source < std::ssize(locals); ++source) {
    const auto& copies = plan.from[static_cast<std::size_t>(source)];
    EXPECT_EQ(copies, plan_redistribution(from, to, source).to[static_cast<std::size_t>(rank)])
        << "rank " << source << " sends what rank " << rank << " awaits";
    for (const BoxCopy& copy : copies) {
      narrow_tensor_by_index(result.local, copy.to, copy.sizes)
          .add_(narrow_tensor_by_index(locals[static_cast<std::size_t>(source)], copy.from, copy.sizes));
      narrow_tensor_by_index(result.received, copy.to, copy.sizes).add_(1);
    }
    if (source != rank && plan.is_local) {
      EXPECT_TRUE(copies.empty()) << "a local plan sends nothing";
    }
  }
  return result;
}

TEST(RedistributionPlan, AnyPlacementsBecomeAnyOthers) {
  RandomCases random(2);
  for (int i = 0; i < 200; ++i) {
    const Sizes mesh = random.mesh(1 + random.below(8)), shape = random.shape();
    const TensorLayout from{shape, mesh, random.placements(mesh.size(), shape.size())};
    const Placements to = random.placements(mesh.size(), shape.size());
    const at::Tensor whole = numbered(shape);
    std::vector<at::Tensor> locals;
    for (std::int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
      locals.push_back(obvious_part(whole, mesh, from.placements, rank));
    }
    for (std::int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
      const Simulated found = simulate(from, to, rank, locals);
      ASSERT_TRUE(found.received.eq(1).all().item<bool>()) << to_string(from) << " to " << to_string(to);
      ASSERT_TRUE(found.local.equal(obvious_part(whole, mesh, to, rank))) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(RedistributionPlan, PartialAxesGiveOneTermOfEachRank) {
  RandomCases random(3);
  for (int i = 0; i < 200; ++i) {
    const Sizes mesh = random.mesh(1 + random.below(8)), shape = random.shape();
    Placements before = random.placements(mesh.size(), shape.size());
    for (auto& each : before) {
      if (random.below(2) == 0) each = Partial();
    }
    const TensorLayout from{shape, mesh, before};
    const Placements to = random.placements(mesh.size(), shape.size());
    const at::Tensor whole = numbered(shape);
    std::vector<at::Tensor> locals;
    for (std::int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
      locals.push_back(obvious_term(obvious_part(whole, mesh, before, rank), mesh, before, rank));
    }
    for (std::int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
      const RedistributionPlan plan = plan_redistribution(from, to, rank);
      const Simulated found = simulate(from, to, rank, locals);
      ASSERT_TRUE(found.received.eq(static_cast<double>(plan.terms)).all().item<bool>());
      ASSERT_TRUE(found.local.equal(obvious_part(whole, mesh, to, rank))) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(RedistributionPlan, ReplicasAreReadWhereTheyAre) {
  const RedistributionPlan plan =
      plan_redistribution({{8}, {2, 2}, {Replicate(), CutBy{0}}}, {Replicate(), Replicate()}, 3);
  EXPECT_TRUE(plan.from[0].empty());
  EXPECT_TRUE(plan.from[1].empty());
  EXPECT_EQ(plan.from[2], (std::vector<BoxCopy>{{{0}, {0}, {4}}}));
  EXPECT_EQ(plan.from[3], (std::vector<BoxCopy>{{{0}, {4}, {4}}}));
  EXPECT_FALSE(plan.is_local);
}

TEST(RedistributionPlan, ReplicateToShardIsLocal) {
  EXPECT_TRUE(plan_redistribution({{9, 4}, {2, 2}, {Replicate(), CutBy{1}}}, {CutBy{0}, CutBy{1}}, 0).is_local);
  EXPECT_TRUE(plan_redistribution({{9, 4}, {2, 2}, {CutBy{0}, Replicate()}}, {CutBy{0}, CutBy{0}}, 0).is_local);
  // The first axis shards first, so the second one's shards change.
  EXPECT_FALSE(plan_redistribution({{9, 4}, {2, 2}, {Replicate(), CutBy{0}}}, {CutBy{0}, CutBy{0}}, 0).is_local);
}

TEST(RedistributionPlan, APartialAxisThatStaysKeepsItsTermsApart) {
  const RedistributionPlan plan =
      plan_redistribution({{8}, {2, 2}, {Partial(), CutBy{0}}}, {Partial(), Replicate()}, 0);
  EXPECT_EQ(plan.terms, 1U);
  EXPECT_EQ(plan.from[1], (std::vector<BoxCopy>{{{0}, {4}, {4}}}));
  EXPECT_TRUE(plan.from[2].empty());
  EXPECT_TRUE(plan.from[3].empty());
}

TEST(RedistributionPlan, AStridedShardIsSeveralBoxes) {
  const RedistributionPlan plan = plan_redistribution({{9}, {4}, {StridedShard{0, 2}}}, {Replicate()}, 0);
  EXPECT_EQ(plan.from[0], (std::vector<BoxCopy>{{{0}, {0}, {2}}, {{2}, {5}, {1}}}));  // Torch's example: 0, 1 and 5.
  EXPECT_EQ(plan.from[3], (std::vector<BoxCopy>{{{0}, {8}, {1}}}));
}

}  // namespace
}  // namespace shard::test
