/// \file
/// A check that a statement throws an Error of a code whose message (or hint, or why) contains some words.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "libshard/core/error.h"

namespace shard::test {

/// Runs `action`, expects an Error and hands it back for a closer look.
template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ErrorCode::kPeer, "no Error was thrown");
}

template <class Action>
void expect_error(ErrorCode code, const std::string& words, Action action) {
  const Error error = error_of(action);
  EXPECT_EQ(code_name(error.code()), code_name(code)) << error.what();
  EXPECT_THAT(std::string(error.what()) + "\n" + error.why() + "\n" + error.hint(), ::testing::HasSubstr(words));
}

}  // namespace shard::test
