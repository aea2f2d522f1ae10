/// \file
/// The stream of LibLZF, which h5py's filter "lzf" writes. It has neither a header nor a checksum. Pure.
///
///     000LLLLL                          L + 1 literal bytes follow
///     LLLDDDDD dddddddd                 repeat L + 2 bytes (L from 1 to 6) from Dd + 1 bytes before the output's end
///     111DDDDD llllllll dddddddd        the same for l + 9 bytes
///
/// Source: LibLZF 3.6, lzf_d.c and lzf_c.c.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace shard::decoded_view {

/// Decodes piece by piece. Copyable, so that a decoder can restart from here. Memory: 8 KiB.
class LzfStream {
 public:
  /// Consumes bytes from the front of `in` and fills the front of `out`, until one of them is used up. \returns the
  /// number of bytes produced. Returns nothing if the stream repeats bytes from before its start; the stream is
  /// unusable then.
  std::optional<std::size_t> decode(std::span<const std::byte>& in, std::span<std::byte> out);
  /// Whether the stream may end here, which is only possible between tokens.
  bool may_end() const { return state_ == State::kToken; }

 private:
  enum class State : std::uint8_t { kToken, kLiterals, kLength, kDistance, kRepeat };
  static constexpr std::size_t kWindow = 1 << 13;

  void take_token(std::uint8_t token);
  void put(std::byte value) { window_[made_++ % kWindow] = value; }

  State state_ = State::kToken;
  std::size_t left_ = 0;      ///< The bytes that the current token still has to produce.
  std::size_t distance_ = 0;  ///< The distance from the output's end back to the repeated bytes.
  std::uint64_t made_ = 0;
  std::array<std::byte, kWindow> window_{};  ///< The last bytes of the output.
};

}  // namespace shard::decoded_view
