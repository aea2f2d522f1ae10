/// \file
/// The stream of LibLZF, as h5py's filter "lzf" writes it. It has neither a header nor a checksum. Pure.
///
///     000LLLLL                          L + 1 bytes follow, which come out as they are
///     LLLDDDDD dddddddd                 L + 2 bytes (L from 1 to 6) are repeated from Dd + 1 bytes before the end
///     111DDDDD llllllll dddddddd        the same, of l + 9 bytes
///
/// Source: LibLZF 3.6, lzf_d.c and lzf_c.c.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace shard::decoded_view {

/// Decodes piece by piece. Copyable, so that a decoder can start again from here. Memory: 8 KiB.
class LzfStream {
 public:
  /// Takes bytes from the front of `in` and fills the front of `out`, until one of them is used up. \returns the number
  /// of bytes that came out; nothing if the stream repeats bytes from before its begin: then it is of no more use.
  std::optional<std::size_t> decode(std::span<const std::byte>& in, std::span<std::byte> out);
  /// Whether the stream may end here.
  bool may_end() const { return state_ == State::kToken; }

 private:
  enum class State : std::uint8_t { kToken, kLiterals, kLength, kDistance, kRepeat };
  static constexpr std::size_t kWindow = 1 << 13;

  void take_token(std::uint8_t token);
  void put(std::byte value) { window_[made_++ % kWindow] = value; }

  State state_ = State::kToken;
  std::size_t left_ = 0;      ///< Bytes that the token still stands for.
  std::size_t distance_ = 0;  ///< How far before the end the repeated bytes begin.
  std::uint64_t made_ = 0;
  std::array<std::byte, kWindow> window_{};  ///< The bytes that came out last.
};

}  // namespace shard::decoded_view
