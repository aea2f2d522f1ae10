#include "libshard/ranks/thread_group.h"

#include <gtest/gtest.h>

#include <atomic>

#include "libshard/core/error.h"
#include "tests/support/group_conformance.h"

namespace shard {
namespace {

using Case = std::tuple<int, std::size_t>;

class ThreadGroupDoes : public ::testing::TestWithParam<Case> {};

TEST_P(ThreadGroupDoes, WhatEveryGroupMust) {
  const auto [ranks, number] = GetParam();
  const testing::GroupCheck& check = testing::group_checks()[number];
  if (check.is_heavy && ranks != 2) GTEST_SKIP() << "gigabytes: with 2 ranks only";
  if (ranks == 64 && std::string_view(check.name) == "ExchangesLargePieces") GTEST_SKIP() << "20 GiB of pieces";
  run_as_threads(ranks, check.run);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroupDoes,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8, 64),
                                            ::testing::Range(std::size_t{0}, testing::group_checks().size())),
                         [](const auto& one) {
                           return testing::group_checks()[std::get<1>(one.param)].name +
                                  std::to_string(std::get<0>(one.param));
                         });

TEST(ThreadGroup, EndsAllWhenARankLeaves) {
  std::atomic<int> told{0};
  EXPECT_THROW(run_as_threads(4,
                              [&](Group& group) {
                                if (group.rank() == 2) throw Error(ErrorCode::kResource, "disk full");
                                try {
                                  group.barrier();
                                } catch (const Error& error) {
                                  told += error.code() == ErrorCode::kPeer ? 1 : 0;
                                  throw;
                                }
                              }),
               Error);
  EXPECT_EQ(told, 3);  // By "rank 2 gave up", long before the timeout of 300 s.
}

TEST(ThreadGroup, ThrowsTheCauseAndNotItsConsequences) {
  try {
    run_as_threads(3, [](Group& group) {
      if (group.rank() == 2) throw Error(ErrorCode::kResource, "disk full");
      group.barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
  }
}

TEST(ThreadGroup, RefusesPiecesOfAnotherSize) {
  EXPECT_THROW(run_as_threads(2,
                              [](Group& group) {
                                Bytes data(group.rank() == 0 ? 4 : 5);
                                group.broadcast(data, 0);
                              }),
               Error);
}

}  // namespace
}  // namespace shard
