/// \file
/// The messages between the parser's process and ours on their socket. Inside formats/hdf5 only.
///
/// The child sends frames: a FrameHead and its payload. After kRead it waits for the blocks, which are sent without a
/// head. The last frame is kDone or kFailure. Numbers are in the machine's form, because both run on it.
///
/// | frame | payload |
/// |---|---|
/// | kRead | ReadRequest; answered by the blocks, the last one of the file ends with the file |
/// | kEntry | an Entry: encode() and decode_entry() |
/// | kSkipped | text: a dangling link, a named datatype |
/// | kDone | FactsPayload |
/// | kFailure | one byte, 1 if the file is valid but not supported; text |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"

namespace shard::hdf5 {

enum class FrameKind : std::uint32_t { kRead, kEntry, kSkipped, kDone, kFailure };
struct FrameHead {
  FrameKind kind{};
  std::uint32_t bytes = 0;  ///< The size of the payload.
};

/// The file is requested in aligned blocks, so that this side can recognise repeated requests.
inline constexpr std::int64_t kReadBlock = 16 << 10;
inline constexpr std::uint32_t kMostReadBlocks = 64;
struct ReadRequest {
  std::uint64_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t unused = 0;
};
struct FactsPayload {
  std::int64_t user_block_bytes = 0;
  std::uint32_t superblock_version = 0;
  std::uint32_t unused = 0;
};

/// The exit code of a parser that cannot drop its rights.
inline constexpr int kExitWithoutSandbox = 3;
/// The exit code of a parser whose processor time is used up.
inline constexpr int kExitOutOfTime = 4;
/// The exit code of a parser without memory for the buffers that every file needs.
inline constexpr int kExitOutOfMemory = 5;

/// The largest nesting depth of datatypes.
inline constexpr int kMostTypeDepth = 16;

/// The payload of kEntry.
std::string encode(const Entry& entry);
/// The payload of kFailure. Text that is longer than kMostFailureBytes is shortened.
std::string encode_failure(std::string_view text, bool is_unsupported);
inline constexpr std::size_t kMostFailureBytes = 4096;

/// The inverse of encode(). Views of the result point into `payload`. Checks all fields of an entry against one another
/// and against a file of `file_bytes` bytes: kinds, lengths, offsets, the order and the grid of chunks. Charges an
/// entry, its chunks and its boxes. \throws Error kCorruption (kind bad_header, out_of_bounds)
Entry decode_entry(std::span<const std::byte> payload, std::int64_t file_bytes, Arena& arena);
/// Throws the error of an answer that no parser gives.
[[noreturn]] void throw_bad_answer(std::string_view what);
/// Throws the failure's error, kCorruption or kUnsupported; kCorruption if it is malformed.
[[noreturn]] void throw_failure(std::span<const std::byte> payload);

}  // namespace shard::hdf5
