// Groups as plain functions: a group that crosses to a plug-in and back behaves like the group itself.
#include "libshard/ranks/c_group.h"

#include <gtest/gtest.h>

#include <new>

#include "libshard/core/error.h"
#include "libshard/ranks/plugin.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/group_conformance.h"

namespace shard {
namespace {

using Case = std::tuple<int, std::size_t>;

class CGroupDoes : public ::testing::TestWithParam<Case> {};

TEST_P(CGroupDoes, WhatEveryGroupMust) {
  const auto [ranks, number] = GetParam();
  const testing::GroupCheck& check = testing::group_checks()[number];
  if (check.is_heavy) GTEST_SKIP() << "gigabytes";
  run_as_threads(ranks, [&check](Group& group) { check.run(*from_c(to_c(group))); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CGroupDoes,
                         ::testing::Combine(::testing::Values(1, 4),
                                            ::testing::Range(std::size_t{0}, testing::group_checks().size())),
                         [](const auto& one) {
                           return testing::group_checks()[std::get<1>(one.param)].name +
                                  std::to_string(std::get<0>(one.param));
                         });

TEST(PluginCall, HandsOverTheWholeError) {
  const auto fails = [](const ErrorSink* errors) {
    return put_error(errors, [] {
      throw Error(ErrorCode::kUnsupported, "no")
          .in_file("f")
          .because("why")
          .expected(3)
          .found("x")
          .of_rank(2)
          .suggest(Remedy::kUseBackend, "gloo");
    });
  };
  try {
    throw_error(fails);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(error.what(), "no");
    EXPECT_EQ(error.file(), "f");
    EXPECT_EQ(error.why(), "why");
    EXPECT_EQ(error.expected(), "3");
    EXPECT_EQ(error.found(), "x");
    EXPECT_EQ(error.rank(), 2);
    ASSERT_EQ(error.suggestions().size(), 1U);
    EXPECT_EQ(error.suggestions()[0].argument, "gloo");
  }
}

ErrorCode code_of(const std::function<void()>& body) {
  try {
    throw_error([&](const ErrorSink* errors) { return put_error(errors, body); });
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kInternal;
}

TEST(PluginCall, TranslatesOtherExceptions) {
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), ErrorCode::kResource);
  EXPECT_EQ(code_of([] { throw std::logic_error("a bug"); }), ErrorCode::kInternal);
}

TEST(PluginCall, SaysSoWhereTheErrorFoundNoRoom) {
  const auto fails = [](const ErrorSink* errors) {
    errors->put(errors->place, {});
    return false;
  };
  EXPECT_THROW(throw_error(fails), Error);
}

TEST(GroupRequest, IsTheSameFromItsBytes) {
  GroupRequest request;
  request.timeout = std::chrono::milliseconds(1234);
  request.launch = {.launcher = Launcher::kSlurm,
                    .rank = 3,
                    .size = 8,
                    .local_rank = 1,
                    .local_size = 2,
                    .address = "host",
                    .port = 65535,
                    .agent_hosts_store = true,
                    .job = "7",
                    .token = "t",
                    .session_folder = "/s",
                    .error_file = "/e"};
  const GroupRequest again = to_group_request(to_bytes(request));
  EXPECT_EQ(again.timeout, request.timeout);
  EXPECT_TRUE(again.launch == request.launch);
}

TEST(GroupRequest, RefusesBytesThatAreNone) {
  Bytes bytes = to_bytes(GroupRequest{});
  bytes.pop_back();
  EXPECT_THROW(to_group_request(bytes), Error);
}

}  // namespace
}  // namespace shard
