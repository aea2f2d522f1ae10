#include "formats/parts/decoded_view/lzf_stream.h"

namespace shard::decoded_view {

void LzfStream::take_token(std::uint8_t token) {
  constexpr std::uint8_t kLiterals = 32, kLongLength = 7;
  if (token < kLiterals) {
    left_ = std::size_t{token} + 1;
    state_ = State::kLiterals;
    return;
  }
  const std::uint8_t length = token >> 5;
  left_ = std::size_t{length} + 2;
  distance_ = (std::size_t{token} & 0x1F) << 8;
  state_ = length == kLongLength ? State::kLength : State::kDistance;
}

std::optional<std::size_t> LzfStream::decode(std::span<const std::byte>& in, std::span<std::byte> out) {
  std::size_t done = 0;
  const auto next = [&in] {
    const auto value = std::to_integer<std::uint8_t>(in.front());
    in = in.subspan(1);
    return value;
  };
  while (true) {
    if (state_ == State::kRepeat) {
      for (; left_ > 0 && done < out.size(); --left_) put(out[done++] = window_[(made_ - distance_) % kWindow]);
      if (left_ > 0) return done;
      state_ = State::kToken;
    }
    if (in.empty()) return done;
    switch (state_) {
      case State::kLiterals:
        for (; left_ > 0 && done < out.size() && !in.empty(); --left_) put(out[done++] = std::byte{next()});
        if (left_ > 0) return done;
        state_ = State::kToken;
        break;
      case State::kLength:  // The second byte of a token with length 7.
        left_ += next();
        state_ = State::kDistance;
        break;
      case State::kDistance:
        distance_ += std::size_t{next()} + 1;
        if (distance_ > made_) return std::nullopt;
        state_ = State::kRepeat;
        break;
      default:
        take_token(next());
    }
  }
}

}  // namespace shard::decoded_view
