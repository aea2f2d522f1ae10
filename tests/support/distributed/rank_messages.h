/// \file
/// Messages between a rank's process and its parent over their socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shard::test {

// How a process knows that it is a rank.
inline constexpr const char* kRankVariable = "SHARD_TEST_RANK";
inline constexpr const char* kFileVariable = "SHARD_TEST_FILE";
inline constexpr const char* kSocketVariable = "SHARD_TEST_SOCKET";

/// The only message of a parent.
inline constexpr char kGetTraceback = 1;

/// From a rank. On the wire: kind, time, number of bytes, bytes.
struct Message {
  enum class Kind : char { kFailure, kSkipReason, kStacks } kind;
  std::int64_t time_ns;  ///< By the steady clock, which all processes of a machine share.
  std::string text;
};
std::string encode(const Message& message);
/// Takes the first message off `bytes`; nothing while it is not whole.
std::optional<Message> take_message(std::string& bytes);

/// A line on stderr if TORCH_CPP_LOG_LEVEL is INFO.
void log_info(const std::string& line);

}  // namespace shard::test
