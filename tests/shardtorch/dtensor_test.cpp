// DTensors on ranks that are threads: each rank's part, redistributed, reduced, and its gradients.
#include "tests/shardtorch/dtensor_fixture.h"

namespace shard::test {
namespace {

using dtensor::DeviceMeshPtr;
using dtensor::distribute_tensor;
using dtensor::init_device_mesh;
using dtensor::make_device_mesh;

void as_ranks(std::int64_t ranks, const std::function<void(std::int64_t)>& body) {
  spawn_threads_and_init_comms(static_cast<int>(ranks), [&](int rank) { body(rank); });
}

DTensor of_parts(const at::Tensor& whole, const DeviceMeshPtr& mesh, const Placements& placements) {
  const at::Tensor part = obvious_part(whole, mesh->shape(), placements, *mesh->index());
  const at::Tensor term = obvious_term(part, mesh->shape(), placements, *mesh->index());
  return DTensor::from_local(term, mesh, placements, {.shape = whole.sizes().vec()});
}

TEST(DTensorOnRanks, AnyPlacementsBecomeAnyOthers) {
  for (const std::int64_t ranks : {2, 4, 6}) {
    as_ranks(ranks, [&](std::int64_t) {
      RandomCases random(static_cast<std::uint32_t>(10 + ranks));
      for (int i = 0; i < 40; ++i) {
        const Sizes sizes = random.mesh(ranks), shape = random.shape();
        const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, sizes);
        const Placements before = random.with_partials(random.placements(sizes.size(), shape.size()));
        const Placements after = random.placements(sizes.size(), shape.size());
        const at::Tensor whole = numbered(shape);
        const DTensor tensor = of_parts(whole, mesh, before);
        expect_part(tensor.redistribute(after), whole, " from " + to_string(before));
        EXPECT_TRUE(tensor.full_tensor().equal(whole)) << tensor;
      }
    });
  }
}

TEST(DTensorOnRanks, DistributeCutsWhatTheFirstRankHas) {
  as_ranks(4, [](std::int64_t rank) {
    RandomCases random(20);
    for (int i = 0; i < 40; ++i) {
      const Sizes sizes = random.mesh(4), shape = random.shape();
      const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, sizes);
      const Placements placements = random.placements(sizes.size(), shape.size());
      const at::Tensor whole = numbered(shape);
      expect_part(distribute_tensor(rank == 0 ? whole : at::full_like(whole, -1), mesh, placements), whole);
      expect_part(distribute_tensor(whole, mesh, placements, std::nullopt), whole);
    }
    const DeviceMeshPtr square = init_device_mesh(at::kCPU, {2, 2});
    const at::Tensor own = at::full({4}, static_cast<double>(rank));
    EXPECT_TRUE(distribute_tensor(own, square, {CutBy{0}, Replicate()}, 1).local().eq(3).all().item<bool>());
  });
}

TEST(DTensorOnRanks, ADistributedTensorIsALeaf) {
  as_ranks(2, [](std::int64_t) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor whole = numbered({4, 2}).requires_grad_();
    const DTensor tensor = distribute_tensor(whole, mesh, {CutBy{0}});
    EXPECT_TRUE(tensor.requires_grad());
    EXPECT_TRUE(tensor.local().is_leaf());
    EXPECT_THAT([&] { distribute_tensor(whole * 2, mesh, {CutBy{0}}); },
                RefusesWith<c10::Error>("should be used to distribute leaf tensors! but found non-leaf tensor!"));
  });
}

TEST(DTensorOnRanks, DistributedToPartialItMakesTheTensorAgain) {
  as_ranks(4, [](std::int64_t) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {4});
    const at::Tensor whole = numbered({3, 2});
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
      const DTensor tensor = distribute_tensor(whole, mesh, {Partial{op}});
      EXPECT_TRUE(tensor.full_tensor().equal(whole)) << tensor;
    }
    EXPECT_TRUE(distribute_tensor(whole, mesh, {Partial()}).local().equal(whole / 4));
    EXPECT_THAT([&] { distribute_tensor(whole, mesh, {Partial{ReduceOp::kProduct}}); },
                RefusesWith<c10::ValueError>("Replicate to P(product) conversion is not supported."));
    EXPECT_THAT([&] { distribute_tensor(whole.to(at::kLong), mesh, {Partial()}); },
                RefusesWith<c10::ValueError>("integers cannot be divided"));
  });
}

TEST(DTensorOnRanks, ProductsAndBothWaysToReduce) {
  as_ranks(4, [](std::int64_t rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {4});
    const DTensor tensor =
        DTensor::from_local(at::full({5}, static_cast<double>(rank + 1)), mesh, {Partial{ReduceOp::kProduct}});
    EXPECT_TRUE(tensor.full_tensor().eq(24).all().item<bool>());
    const DTensor shards = tensor.redistribute({CutBy{0}});
    EXPECT_EQ(shards.local().numel(), rank < 2 ? 2 : rank == 2 ? 1 : 0);
    EXPECT_TRUE(shards.local().eq(24).all().item<bool>());
  });
}

TEST(DTensorOnRanks, WholeSizesAreComputedFromOneRanks) {
  as_ranks(4, [](std::int64_t) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 2});
    const DTensor tensor = DTensor::from_local(at::ones({3, 5}), mesh, {CutBy{0}, CutBy{-1}});
    EXPECT_EQ(tensor.sizes(), (Sizes{6, 10}));
    EXPECT_EQ(tensor.strides(), (Sizes{10, 1}));
    EXPECT_EQ(tensor.placements(), (Placements{CutBy{0}, CutBy{1}}));
    EXPECT_THAT(
        [&] {
          DTensor::from_local(at::ones({3}), mesh, {CutBy{0}, CutBy{0}}, {.shape = Sizes{8}});
        },
        RefusesWith<c10::ValueError>("the local tensor has size [3], but the part of this rank of size=[8]"));
  });
}

TEST(DTensorOnRanks, RunCheckComparesAndCopiesTheFirstReplica) {
  as_ranks(4, [](std::int64_t rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 2});
    const at::Tensor local = at::full({2}, static_cast<double>(rank));
    const DTensor tensor = DTensor::from_local(local, mesh, {Replicate(), CutBy{0}}, {.run_check = true});
    EXPECT_TRUE(tensor.local().is_same(local));
    EXPECT_TRUE(local.eq(rank % 2).all().item<bool>()) << "that of the rank at place 0 of the first axis";
    EXPECT_THAT(
        [&] {
          DTensor::from_local(at::ones({rank == 3 ? 1 : 2}), mesh, {Replicate(), CutBy{0}}, {.run_check = true});
        },
        RefusesWith<c10::ValueError>("local size=["));
  });
}

TEST(DTensorOnRanks, RanksOutsideOfTheMeshHoldNothingAndWaitForNobody) {
  as_ranks(4, [](std::int64_t rank) {
    const DeviceMeshPtr mesh = make_device_mesh(at::kCPU, {3, 1}, {{"", 2}});
    const at::Tensor whole = numbered({5});
    const DTensor tensor = distribute_tensor(rank == 3 ? whole : at::zeros_like(whole), mesh, {CutBy{0}});
    EXPECT_EQ(tensor.sizes(), whole.sizes());
    const at::Tensor full = tensor.redistribute({Replicate()}).full_tensor();
    if (mesh->is_member()) {
      EXPECT_EQ(tensor.local().numel(), rank == 3 ? 3 : 2);
      EXPECT_TRUE(full.equal(whole));
    } else {
      EXPECT_EQ(full.numel(), 0);
    }
  });
}

TEST(DTensorOnRanks, ASliceOfAMeshWorksAlone) {
  as_ranks(8, [](std::int64_t rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
    const DeviceMeshPtr both = mesh->slice({"pp", "tp"});
    const at::Tensor whole = numbered({5, 3}) + static_cast<double>(rank / 2 % 2);
    expect_part(distribute_tensor(whole, both, {CutBy{1}, CutBy{0}}).redistribute({CutBy{0}, CutBy{0}}), whole);
    expect_part(distribute_tensor(whole, mesh->slice({"dp"}), {Replicate()}, std::nullopt), whole);
  });
}

TEST(DTensorOnRanks, AnyMeshBecomesAnyOther) {
  as_ranks(5, [](int rank) {
    RandomCases random(60);
    const DeviceMeshPtr square = make_device_mesh(at::kCPU, {4, 0, 3, 1}, {{"", 2}, {"", 2}});
    const DeviceMeshPtr line = make_device_mesh(at::kCPU, {2, 1, 4}, {{"", 3}});
    for (int i = 0; i < 30; ++i) {
      const DeviceMeshPtr &before = i % 2 == 0 ? square : line, &after = i % 2 == 0 ? line : square;
      const at::Tensor whole = numbered(random.shape());
      const auto dims = static_cast<std::size_t>(whole.dim());
      const Placements from = random.placements(before->ndim(), dims), to = random.placements(after->ndim(), dims);
      const DTensor moved = distribute_tensor(whole, before, from).redistribute(to, {.mesh = after});
      EXPECT_EQ(moved.device_mesh(), after);
      EXPECT_EQ(moved.placements(), to);
      EXPECT_EQ(moved.sizes(), whole.sizes());
      if (!after->is_member()) continue;
      EXPECT_TRUE(moved.local().equal(obvious_part(whole, after->shape(), to, *after->index())))
          << to_string(from) << " to " << to_string(to) << " on rank " << rank;
    }
  });
}

TEST(DTensorOnRanks, AnotherMeshIsOfTheSameWorldAndHoldsNoTerms) {
  as_ranks(2, [](int) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2}),
                        reversed = make_device_mesh(at::kCPU, {1, 0}, {{"", 2}});
    const DTensor tensor = distribute_tensor(numbered({4}).requires_grad_(), mesh, {CutBy{0}});
    const DTensor moved = tensor.redistribute({CutBy{0}}, {.forward_dtype = at::kFloat, .mesh = reversed});
    EXPECT_EQ(moved.dtype(), at::kFloat);
    EXPECT_TRUE(moved.local().is_leaf() && moved.requires_grad());
    const DTensor terms = dtensor::zeros({4}, mesh, {Partial()});
    EXPECT_THAT([&] { terms.redistribute({Replicate()}, {.mesh = reversed}); },
                RefusesWith<c10::Error>("Can not redistribute [P(sum)] to another mesh"));
    EXPECT_THAT([&] { tensor.redistribute({Partial()}, {.mesh = reversed}); },
                RefusesWith<c10::Error>("Can not redistribute [P(sum)] to another mesh"));
  });
}

TEST(DTensorOnRanks, AnEqualMeshIsTheTensorsOwn) {
  as_ranks(2, [](std::int64_t) {
    const DTensor tensor =
        distribute_tensor(numbered({4}).requires_grad_(), init_device_mesh(at::kCPU, {2}), {CutBy{0}});
    const DeviceMeshPtr equal = init_device_mesh(at::kCPU, {2});
    EXPECT_TRUE(tensor.redistribute({CutBy{0}}, {.mesh = equal}).is_same(tensor));
    const DTensor whole = tensor.redistribute({Replicate()}, {.mesh = equal});
    whole.local().sum().backward();
    EXPECT_TRUE(tensor.local().grad().eq(1).all().item<bool>());
  });
}

TEST(DTensorOnRanks, SamePlacementsAreTheSameTensor) {
  as_ranks(2, [](std::int64_t) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2});
    const DTensor tensor = dtensor::ones({4, 4}, mesh, {CutBy{1}});
    EXPECT_TRUE(tensor.redistribute({CutBy{-1}}).is_same(tensor));
    EXPECT_TRUE(tensor.to_local().is_same(tensor.local()));
    EXPECT_TRUE(DTensor::of(tensor.as_tensor()).is_same(tensor));
    EXPECT_FALSE(DTensor::of(tensor.local()).defined());
    EXPECT_FALSE(DTensor::of(at::Tensor()).defined());
  });
}

TEST(DTensorOnRanks, NothingBecomesPartial) {
  as_ranks(2, [](std::int64_t) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2});
    EXPECT_THAT([&] { dtensor::zeros({4}, mesh, {CutBy{0}}).redistribute({Partial()}); },
                RefusesWith<c10::Error>("Can not redistribute from S(0) to P(sum), redistributing to Partial is for "
                                        "internal use only!"));
  });
}

TEST(DTensorOnRanks, RanksThatAskForDifferentPlacementsAllThrow) {
  as_ranks(3, [](std::int64_t rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {3});
    const DTensor tensor = dtensor::zeros({4, 4}, mesh, {CutBy{0}});
    EXPECT_THAT([&] { tensor.redistribute({rank == 1 ? dtensor::Placement(CutBy{1}) : Replicate()}); },
                RefusesWith<c10::ValueError>("new placements=["));
    const DTensor terms = dtensor::zeros({4, 4}, mesh, {Partial()});
    EXPECT_THAT([&] { terms.redistribute({rank == 1 ? dtensor::Placement(CutBy{1}) : Replicate()}); },
                RefusesWith<c10::ValueError>("new placements=["));
    EXPECT_THAT([&] { distribute_tensor(at::ones({rank == 1 ? 3 : 4}), mesh, {CutBy{0}}); },
                RefusesWith<c10::ValueError>("size=["));
    EXPECT_THAT([&] { distribute_tensor(at::ones({4}), mesh, {CutBy{0}}, 3); },
                RefusesWith<c10::ValueError>("rank 3 is not on dimension 0"));
  });
}

TEST(DTensorOnRanks, TheHandleHasTheSizeAndTypeOfTheWhole) {
  as_ranks(1, [](std::int64_t) {
    const DTensor tensor = dtensor::full({2, 3}, 4, init_device_mesh(at::kCPU, {1}), {CutBy{0}}, {.dtype = at::kLong});
    EXPECT_TRUE(tensor.local().equal(at::full({2, 3}, 4, at::kLong)));
    EXPECT_EQ(tensor.as_tensor().sizes(), (Sizes{2, 3}));
    EXPECT_EQ(tensor.as_tensor().scalar_type(), at::kLong);
    EXPECT_EQ(tensor.str(), "DTensor(size=[2, 3], dtype=Long, device_mesh=DeviceMesh((1), 'cpu'), placements=[S(0)])");
  });
}

}  // namespace
}  // namespace shard::test
