#include "tests/support/distributed/python_random.h"

#include <algorithm>
#include <array>
#include <bit>

namespace shard::test {

namespace {

using State = std::array<std::uint32_t, std::mt19937::state_size>;

/// The Mersenne twister's init_by_array (Matsumoto and Nishimura, 2002), as a seed sequence of the standard library,
/// which takes the whole state from it.
class SeedByArray {
 public:
  using result_type = std::uint_least32_t;
  explicit SeedByArray(const std::vector<std::uint32_t>& key) {
    std::uint32_t word = 19650218;
    for (std::size_t i = 0; i < state_.size(); ++i) {
      state_[i] = word;
      word = 1812433253U * (state_[i] ^ (state_[i] >> 30)) + static_cast<std::uint32_t>(i) + 1;
    }
    for (std::size_t k = std::max(state_.size(), key.size()), j = 0; k > 0; --k, j = (j + 1) % key.size()) {
      mix(1664525U, key[j] + static_cast<std::uint32_t>(j));
    }
    for (std::size_t k = state_.size() - 1; k > 0; --k) mix(1566083941U, 0U - static_cast<std::uint32_t>(at_));
    state_[0] = 0x80000000U;
  }
  template <class Iterator>
  void generate(Iterator begin, Iterator) const {
    std::ranges::copy(state_, begin);
  }

 private:
  void mix(std::uint32_t factor, std::uint32_t addend) {
    const std::uint32_t before = state_[at_ - 1];
    state_[at_] = (state_[at_] ^ ((before ^ (before >> 30)) * factor)) + addend;
    if (++at_ < state_.size()) return;
    state_[0] = state_.back();
    at_ = 1;
  }

  State state_{};
  std::size_t at_ = 1;
};

std::mt19937 engine_of(std::uint64_t seed) {
  std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
  SeedByArray sequence(key);
  return std::mt19937(sequence);
}

}  // namespace

PythonRandom::PythonRandom(std::uint64_t seed) : engine_(engine_of(seed)) {}

std::uint32_t PythonRandom::below(std::uint32_t limit) {
  const int bits = std::bit_width(limit);
  for (;;) {
    const auto drawn = static_cast<std::uint32_t>(engine_()) >> (32 - bits);
    if (drawn < limit) return drawn;
  }
}

}  // namespace shard::test
