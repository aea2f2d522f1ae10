// Collectives of tensors: one suite for all groups, here ranks that are threads, and Gloo between threads.

#include "shardtorch/sharded_tensor/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/c10d/gloo.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

struct Ranks {
  std::string backend;
  int size;
};

/// Runs `body` as every rank, each on a thread whose default group is the world.
void on_ranks(const Ranks& ranks, const std::function<void(const ProcessGroup&)>& body) {
  std::vector<std::shared_ptr<World>> worlds(static_cast<std::size_t>(ranks.size));
  if (ranks.backend == "threads") worlds = make_thread_worlds(ranks.size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks.size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto world = worlds[static_cast<std::size_t>(rank)];
        if (world == nullptr) world = make_c10d_world(ranks.backend, store, rank, ranks.size, 20s);
        const ProcessGroupPtr group = init_thread_process_group(world);
        group->set_timeout(20s);
        body(*group);
        group->group().barrier();  // A group that ends early breaks it for the others.
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      destroy_process_group();
    });
  }
}

class Collectives : public ::testing::TestWithParam<Ranks> {
 protected:
  static void on_all(const std::function<void(const ProcessGroup&)>& body) { on_ranks(GetParam(), body); }
};

INSTANTIATE_TEST_SUITE_P(Groups, Collectives,
                         ::testing::Values(Ranks{"threads", 1}, Ranks{"threads", 2}, Ranks{"threads", 3},
                                           Ranks{"threads", 4}, Ranks{"gloo", 1}, Ranks{"gloo", 2}, Ranks{"gloo", 3},
                                           Ranks{"gloo", 4}),
                         [](const auto& one) { return one.param.backend + std::to_string(one.param.size); });

/// Elements that encode the rank and their position.
at::Tensor own_numbers(int rank, at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
  return (at::arange(c10::multiply_integers(sizes)).reshape(sizes) + 100 * (rank + 1)).to(dtype);
}

constexpr at::ScalarType kAllDtypes[] = {
    at::kByte,   at::kChar,          at::kShort,        at::kInt,           at::kLong,       at::kHalf,
    at::kFloat,  at::kDouble,        at::kBFloat16,     at::kBool,          at::kUInt16,     at::kUInt32,
    at::kUInt64, at::kFloat8_e4m3fn, at::kComplexFloat, at::kComplexDouble, at::kComplexHalf};

TEST_P(Collectives, AllReduceSumsNumbersOfEveryDtypeThatHasSums) {
  on_all([](const ProcessGroup& group) {
    for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                                       at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      const at::Tensor tensor = (at::arange(7) + group.rank()).to(dtype);
      all_reduce(tensor);
      const int n = group.size();
      EXPECT_TRUE(tensor.equal((at::arange(7) * n + n * (n - 1) / 2).to(dtype))) << dtype << tensor;
    }
  });
}

TEST_P(Collectives, AllReduceHasMeanProductMinimumAndMaximum) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    const auto reduced = [&](ReduceOp how, at::ScalarType dtype) {
      const at::Tensor tensor = at::tensor({group.rank() + 1, 3, n - group.rank()}).to(dtype);
      all_reduce(tensor, how);
      return tensor;
    };
    int factorial = 1, cube = 1;
    for (int i = 1; i <= n; ++i) factorial *= i, cube *= 3;
    EXPECT_TRUE(
        reduced(ReduceOp::kMean, at::kDouble).equal(at::tensor({(n + 1) / 2.0, 3.0, (n + 1) / 2.0}, at::kDouble)));
    for (const at::ScalarType dtype : {at::kInt, at::kShort, at::kFloat}) {
      EXPECT_TRUE(reduced(ReduceOp::kProduct, dtype).equal(at::tensor({factorial, cube, factorial}).to(dtype)));
      EXPECT_TRUE(reduced(ReduceOp::kMin, dtype).equal(at::tensor({1, 3, 1}).to(dtype)));
      EXPECT_TRUE(reduced(ReduceOp::kMax, dtype).equal(at::tensor({n, 3, n}).to(dtype)));
    }
    const at::Tensor any = at::tensor({group.rank() == 0 ? 1 : 0, 1}).to(at::kBool), all = any.clone();
    all_reduce(any, ReduceOp::kMax);
    all_reduce(all, ReduceOp::kMin);
    EXPECT_TRUE(any.all().item<bool>());
    EXPECT_EQ(all[0].item<bool>(), n == 1);
  });
}

at::Tensor booleans(bool first, bool second) { return at::tensor({first ? 1 : 0, second ? 1 : 0}).to(at::kBool); }

TEST_P(Collectives, AllReduceCombinesTheBitsOfIntegersAndBooleans) {
  on_all([](const ProcessGroup& group) {
    const auto reduced = [&](ReduceOp how, const at::Tensor& tensor) {
      all_reduce(tensor, how);
      return tensor;
    };
    const int n = group.size(), bit = 1 << group.rank(), bits = (1 << n) - 1, ranks_sum_parity = n % 2;
    for (const at::ScalarType dtype : {at::kByte, at::kShort, at::kInt, at::kLong}) {
      const at::Tensor own = at::tensor({bit, 6, bits - bit}).to(dtype);
      EXPECT_TRUE(reduced(ReduceOp::kOr, own.clone()).equal(at::tensor({bits, 6, n == 1 ? 0 : bits}).to(dtype)));
      EXPECT_TRUE(reduced(ReduceOp::kAnd, own.clone()).equal(at::tensor({n == 1 ? bits : 0, 6, 0}).to(dtype)));
      EXPECT_EQ(reduced(ReduceOp::kXor, own.clone())[1].item<int>(), 6 * ranks_sum_parity) << dtype;
    }
    const at::Tensor own = booleans(group.rank() == 0, true);
    EXPECT_TRUE(reduced(ReduceOp::kAnd, own.clone()).equal(booleans(n == 1, true)));
    EXPECT_TRUE(reduced(ReduceOp::kOr, own.clone()).all().item<bool>());
    EXPECT_TRUE(reduced(ReduceOp::kXor, own.clone()).equal(booleans(true, ranks_sum_parity == 1)));
    SHARD_EXPECT_THROW(all_reduce(at::ones({2}), ReduceOp::kAnd), c10::TypeError,
                       "cannot reduce the bits of dtype Float");
  });
}

TEST_P(Collectives, ScatterAndGatherMovePiecesFromAndToEveryRoot) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    const auto piece = [](int rank) { return own_numbers(rank, {rank, 3}, rank % 2 == 0 ? at::kFloat : at::kLong); };
    std::vector<at::Tensor> pieces, landings;
    for (int rank = 0; rank < n; ++rank) pieces.push_back(piece(rank));
    for (int root = 0; root < n; ++root) {
      const bool is_root = group.rank() == root;
      const at::Tensor own = at::zeros_like(piece(group.rank())).t().contiguous().t();
      scatter(own, is_root ? pieces : landings, root);
      EXPECT_TRUE(own.equal(piece(group.rank()))) << "from " << root;
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : pieces) {
        if (is_root) all.push_back(at::zeros_like(each));
      }
      gather(all, own, root);
      for (std::size_t rank = 0; rank < all.size(); ++rank) EXPECT_TRUE(all[rank].equal(pieces[rank])) << rank;
    }
    pieces.push_back(at::zeros({1}));
    SHARD_EXPECT_THROW(scatter(at::zeros({1}), pieces, group.rank()), c10::ValueError, "tensors for a group of");
    SHARD_EXPECT_THROW(gather({}, at::zeros({1}), group.rank()), c10::ValueError, "0 tensors for a group of");
    SHARD_EXPECT_THROW(gather({}, at::zeros({1}), n), c10::ValueError, "is not part of group");
    if (n == 1) return;
    SHARD_EXPECT_THROW(gather(pieces, at::zeros({1}), (group.rank() + 1) % n), c10::ValueError,
                       "passes a tensor for each");
  });
}

TEST_P(Collectives, AllReduceRefusesWhatHasNoSuchReduction) {
  on_all([](const ProcessGroup&) {
    SHARD_EXPECT_THROW(all_reduce(at::zeros({2}, at::kInt), ReduceOp::kMean), c10::TypeError, "dtype Int");
    SHARD_EXPECT_THROW(all_reduce(at::zeros({2}, at::kBool)), c10::TypeError, "dtype Bool");
    SHARD_EXPECT_THROW(all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kMin), c10::TypeError, "ComplexFloat");
    SHARD_EXPECT_THROW(all_reduce(at::zeros({2}, at::kFloat8_e5m2)), c10::TypeError, "dtype Float8_e5m2");
  });
}

TEST_P(Collectives, AllReduceGivesTheSameBitsToAllRanks) {
  on_all([](const ProcessGroup& group) {
    const at::Tensor tensor = own_numbers(group.rank(), {1001}, at::kFloat).log();
    all_reduce(tensor);
    const at::Tensor all = all_gather(tensor);
    for (const at::Tensor& other : all.view({group.size(), 1001}).unbind()) EXPECT_TRUE(other.equal(tensor));
  });
}

TEST_P(Collectives, TensorsOfAnyStridesAreWrittenInPlace) {
  on_all([](const ProcessGroup& group) {
    const at::Tensor whole = at::ones({4, 6}, at::kDouble);
    all_reduce(whole.t().slice(0, 0, 6, 2));  // Every second column.
    const double n = group.size();
    EXPECT_TRUE(whole.slice(1, 0, 6, 2).eq(n).all().item<bool>());
    EXPECT_TRUE(whole.slice(1, 1, 6, 2).eq(1).all().item<bool>());
    const at::Tensor scalar = at::scalar_tensor(2.0), empty = at::empty({0, 3});
    all_reduce(scalar);
    all_reduce(empty);
    EXPECT_EQ(scalar.item<double>(), 2 * n);
    broadcast(whole.t(), 0);
    const at::Tensor leaf = at::ones({2}).requires_grad_();
    all_reduce(leaf);
    EXPECT_TRUE(leaf.requires_grad() && leaf.is_leaf()) << "as c10d's: nothing is recorded";
  });
}

TEST_P(Collectives, BroadcastMovesEveryDtypeFromEveryRoot) {
  on_all([](const ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const at::ScalarType dtype : kAllDtypes) {
        const at::Tensor tensor = at::arange(6).add(group.rank()).to(dtype).view({2, 3}).t();
        broadcast(tensor, root);
        const at::Tensor expected = at::arange(6).add(root).to(dtype).view({2, 3}).t();
        EXPECT_TRUE(tensor.contiguous().view(at::kByte).equal(expected.contiguous().view(at::kByte))) << dtype;
      }
    }
    SHARD_EXPECT_THROW(broadcast(at::zeros({1}), group.size()), c10::ValueError, "is not part of group");
  });
}

TEST_P(Collectives, AllGatherConcatenatesAlongAnyDimension) {
  on_all([](const ProcessGroup& group) {
    std::vector<at::Tensor> all, scalars;
    for (int rank = 0; rank < group.size(); ++rank) {
      all.push_back(own_numbers(rank, {2, 3, 4}));
      scalars.push_back(at::scalar_tensor(rank, at::kLong));
    }
    for (const std::int64_t dim : {0, 1, 2, -1, -3}) {
      EXPECT_TRUE(all_gather(own_numbers(group.rank(), {2, 3, 4}), dim).equal(at::cat(all, dim))) << dim;
    }
    EXPECT_TRUE(all_gather(at::scalar_tensor(group.rank(), at::kLong)).equal(at::stack(scalars)));
    EXPECT_EQ(all_gather(at::empty({0, 2})).sizes(), (at::IntArrayRef{0, 2}));
    SHARD_EXPECT_THROW(all_gather(at::zeros({2}), 1), c10::IndexError, "out of range");
  });
}

TEST_P(Collectives, AllGatherIntoTakesShapesThatDiffer) {
  on_all([](const ProcessGroup& group) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(at::zeros({rank, 2}, at::kDouble));
    all_gather_into(all, own_numbers(group.rank(), {group.rank(), 2}));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(all[static_cast<std::size_t>(rank)].equal(own_numbers(rank, {rank, 2})));
    }
    all.pop_back();
    SHARD_EXPECT_THROW(all_gather_into(all, at::zeros({1})), c10::ValueError, "tensors for a group of");
  });
}

TEST_P(Collectives, ReduceScatterIsAPartOfAllReduce) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    for (const std::int64_t dim : {0, 1, -1}) {
      for (const ReduceOp how : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        const at::Tensor own = own_numbers(group.rank(), {2 * n, 3 * n}), whole = own.clone();
        all_reduce(whole, how);
        const at::Tensor part = whole.tensor_split(n, dim)[static_cast<std::size_t>(group.rank())];
        EXPECT_TRUE(at::allclose(reduce_scatter(own, how, dim), part)) << dim;
      }
    }
    SHARD_EXPECT_THROW(reduce_scatter(at::scalar_tensor(1)), c10::ValueError, "cannot be divided into");
    if (n == 1) return;
    SHARD_EXPECT_THROW(reduce_scatter(at::zeros({n + 1})), c10::ValueError, "cannot be divided into");
  });
}

TEST_P(Collectives, AllToAllMovesPiecesOfAnyShapeAndDtype) {
  on_all([](const ProcessGroup& group) {
    const auto piece = [](int from, int to) {
      return own_numbers(10 * from + to, {from, to + 1}, from % 2 == 0 ? at::kFloat : at::kLong);
    };
    std::vector<at::Tensor> to, from;
    for (int rank = 0; rank < group.size(); ++rank) {
      to.push_back(piece(group.rank(), rank));
      from.push_back(at::zeros_like(piece(rank, group.rank())).t().contiguous().t());
    }
    all_to_all(to, from);
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(from[static_cast<std::size_t>(rank)].equal(piece(rank, group.rank())));
    }
  });
}

TEST_P(Collectives, GroupsOfSomeRanksHaveTheirOwn) {
  on_all([](const ProcessGroup& group) {
    const ProcessGroupPtr first = new_group({0});
    if (group.rank() == 0) {
      const at::Tensor one = at::ones({2});
      all_reduce(one, ReduceOp::kSum, first);
      EXPECT_EQ(one[0].item<double>(), 1);
    } else {
      SHARD_EXPECT_THROW(all_reduce(at::ones({2}), ReduceOp::kSum, first), c10::ValueError,
                         "this process is not a member of the group group-1");
    }
  });
}

TEST_P(Collectives, TensorsWhereTheGroupWantsThemAreNotStaged) {
  on_all([](const ProcessGroup& group) {
    const WireBytes before = group.wire_bytes();
    all_reduce(at::ones({100}, at::kDouble));
    const WireBytes after = group.wire_bytes();
    EXPECT_EQ(after.direct - before.direct, 800);
    EXPECT_EQ(after.staged, 0);
  });
}

// Autograd

TEST_P(Collectives, GradientsOfSummedLossesAreThoseOfTheSum) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    const double rank = group.rank();
    using functional::Losses;
    const at::Tensor x = at::full({2, 3}, rank + 1, at::kDouble).requires_grad_();
    (functional::all_reduce(x, Losses::kSummed) * (rank + 1)).sum().backward();
    EXPECT_TRUE(x.grad().eq(n * (n + 1) / 2.0).all().item<bool>()) << x.grad();
    x.mutable_grad().reset();
    const at::Tensor all = functional::all_gather(x, 1, Losses::kSummed);
    ASSERT_EQ(all.size(1), 3 * n);
    (all * at::arange(3 * n) * (rank + 1)).sum().backward();
    const at::Tensor weights = at::arange(3, at::kDouble) + 3 * rank;
    EXPECT_TRUE(at::allclose(x.grad(), (weights * (n * (n + 1) / 2.0)).expand({2, 3})));
  });
}

TEST_P(Collectives, GradientsOfOneLossAreNotCountedTwice) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    using functional::Losses;
    const at::Tensor x = at::ones({2}, at::kDouble).requires_grad_();
    (functional::all_reduce(x, Losses::kReplicated) * 5).sum().backward();
    EXPECT_TRUE(x.grad().eq(5).all().item<bool>());
    x.mutable_grad().reset();
    (functional::all_gather(x, 0, Losses::kReplicated) * at::arange(2 * n)).sum().backward();
    EXPECT_TRUE(x.grad().equal(at::arange(2, at::kDouble) + 2 * group.rank()));
    x.mutable_grad().reset();
    (functional::replicated(x) * (group.rank() + 1)).sum().backward();
    EXPECT_TRUE(x.grad().eq(n * (n + 1) / 2.0).all().item<bool>());
  });
}

TEST_P(Collectives, GradientsOfPartsGoBackToTheirRanks) {
  on_all([](const ProcessGroup& group) {
    const int n = group.size();
    const at::Tensor x = at::ones({n, 2}, at::kDouble).requires_grad_();
    (functional::reduce_scatter(x) * (group.rank() + 1)).sum().backward();
    EXPECT_TRUE(x.grad().equal((at::arange(n, at::kDouble) + 1).unsqueeze(1).expand({n, 2})));
    std::vector<at::Tensor> to;
    std::vector<std::vector<std::int64_t>> shapes;
    for (int rank = 0; rank < n; ++rank) {
      to.push_back(at::ones({rank + 1}, at::kDouble).requires_grad_());
      shapes.push_back({group.rank() + 1});
    }
    const auto from = functional::all_to_all(to, shapes);
    (from.back() * (group.rank() + 7)).sum().backward();  // The others' gradients are zeros.
    for (int rank = 0; rank < n; ++rank) {
      const double expected = group.rank() == n - 1 ? rank + 7 : 0;
      EXPECT_TRUE(to[static_cast<std::size_t>(rank)].grad().eq(expected).all().item<bool>());
    }
  });
}

/// The losses weigh each element by its place, rank r's r + 1 times.
void expect_gradients_of_a_full_tensor(const ProcessGroup& group, const ShardingSpecPtr& spec) {
  using functional::Losses;
  const int n = group.size();
  const at::Tensor whole = at::arange(15, at::kDouble).view({5, 3});
  for (const Losses losses : {Losses::kSummed, Losses::kReplicated}) {
    const ShardedTensor tensor = sharded_tensor::full(spec, {5, 3}, 7, {.dtype = at::kDouble, .requires_grad = true});
    const at::Tensor full = functional::full_tensor(tensor, losses);
    EXPECT_TRUE(full.eq(7).all().item<bool>());
    const double factor = losses == Losses::kSummed ? group.rank() + 1 : 1;
    (full * whole * factor).sum().backward();
    const double sum = losses == Losses::kSummed ? n * (n + 1) / 2.0 : 1;
    for (const Shard& shard : tensor.local_shards()) {
      EXPECT_TRUE(shard.tensor.grad().equal(narrow_tensor(whole, shard.metadata) * sum)) << spec->str();
    }
  }
}

TEST_P(Collectives, GradientsOfAFullTensorReachItsShards) {
  on_all([](const ProcessGroup& group) {
    std::vector<RemoteDevice> all, last_alone(2, RemoteDevice(group.size() - 1, at::kCPU));
    for (int rank = 0; rank < group.size(); ++rank) all.emplace_back(rank, at::kCPU);
    expect_gradients_of_a_full_tensor(group, chunk_spec(0, all));         // The last of four ranks has no rows.
    expect_gradients_of_a_full_tensor(group, chunk_spec(1, last_alone));  // Both shards; the others have none.
    EXPECT_FALSE(functional::full_tensor(sharded_tensor::ones(chunk_spec(0, all), {5, 3}), functional::Losses::kSummed)
                     .requires_grad());
  });
}

// Properties of groups

TEST_P(Collectives, TheBackendOfC10dIsInReach) {
  on_all([](const ProcessGroup& group) {
    const auto backend = group.c10d_backend();
    if (group.backend() == "threads") {
      EXPECT_EQ(backend, nullptr);
      return;
    }
    ASSERT_NE(backend, nullptr);
    std::vector<at::Tensor> tensors{at::ones({3})};
    backend->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0][0].item<double>(), group.size());
  });
}

TEST_P(Collectives, AGroupsTimeoutIsItsOwn) {
  if (GetParam().size != 2) GTEST_SKIP() << "for two ranks";
  on_all([](const ProcessGroup& group) {
    const ProcessGroupPtr hasty = new_group({0, 1}, {.timeout = 200ms});
    if (group.rank() == 0) {
      const auto begin = std::chrono::steady_clock::now();
      expect_error(ErrorCode::kPeer, "", [&] { all_reduce(at::ones({1}), ReduceOp::kSum, hasty); });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
      EXPECT_EQ(hasty->c10d_backend(), nullptr) << "a group that lost a rank has no backend";
    }
    group.group().barrier();  // The world's timeout is as it was.
  });
}

}  // namespace
}  // namespace shard::test
