/// \file
/// What the parser's process and ours say to each other over their socket. Inside formats/hdf5 only.
///
/// The child sends frames: a FrameHead and its payload. After kRead it waits for the blocks, which come bare. The last
/// frame is kDone or kFailure. Both processes run on one machine, so numbers are the machine's own.
///
/// | frame | payload |
/// |---|---|
/// | kRead | ReadRequest; answered by the blocks, the last of the file cut at its end |
/// | kEntry | an Entry: encode() and decode_entry() |
/// | kSkipped | text: a link that leads nowhere, a named datatype |
/// | kDone | FactsPayload |
/// | kFailure | one byte, 1 where the file is valid but not supported; text |
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
  std::uint32_t bytes = 0;  ///< Of the payload.
};

/// The file is asked for in aligned blocks, so that this side can tell which it served before.
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

/// How the parser ends if it cannot give up what it does not need.
inline constexpr int kExitWithoutSandbox = 3;
/// How it ends if its processor time does.
inline constexpr int kExitOutOfTime = 4;

/// Datatypes may nest so deep.
inline constexpr int kMostTypeDepth = 16;

/// The payload of kEntry.
std::string encode(const Entry& entry);
/// The payload of kFailure. Text that is longer than kMostFailureBytes is cut.
std::string encode_failure(std::string_view text, bool is_unsupported);
inline constexpr std::size_t kMostFailureBytes = 4096;

/// The inverse of encode(). Views of the result point into `payload`. Checks all that an entry says against itself and
/// against a file of `file_bytes` bytes: kinds, lengths, places, the order and the grid of chunks.
/// Charges an entry, its chunks and its boxes. \throws Error kCorruption (kind bad_header, out_of_bounds)
Entry decode_entry(std::span<const std::byte> payload, std::int64_t file_bytes, Arena& arena);
/// \throws Error kCorruption or kUnsupported  what the failure says; kCorruption where it is malformed.
[[noreturn]] void throw_failure(std::span<const std::byte> payload);

}  // namespace shard::hdf5
