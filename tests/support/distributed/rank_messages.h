/// \file
/// Messages between a rank's process and its parent over their socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shard::test {

// Variables by which a process knows that it is a rank.
inline constexpr const char* kRankVariable = "SHARD_TEST_RANK";
inline constexpr const char* kFileVariable = "SHARD_TEST_FILE";
inline constexpr const char* kSocketVariable = "SHARD_TEST_SOCKET";

/// The only message that a parent sends.
inline constexpr char kGetTraceback = 1;

/// A message from a rank. On the wire: kind, time, number of bytes, bytes.
struct Message {
  enum class Kind : char { kFailure, kSkipReason, kStacks } kind;
  std::int64_t time_ns;  ///< On the steady clock, which all processes of a machine share.
  std::string text;
};
std::string encode(const Message& message);
/// Removes the first message from `bytes` and returns it; nothing if it is incomplete.
std::optional<Message> take_message(std::string& bytes);

/// A line on stderr if TORCH_CPP_LOG_LEVEL is INFO.
void log_info(const std::string& line);

}  // namespace shard::test
