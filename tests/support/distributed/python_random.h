/// \file
/// Python's random.Random, as far as tests draw from it: the same numbers and orders for the same seed.
///
/// Sources: init_by_array in Modules/_randommodule.c; shuffle and _randbelow_with_getrandbits in Lib/random.py
/// (CPython 3.11).
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace shard::test {

class PythonRandom {
 public:
  /// random.Random(seed)
  explicit PythonRandom(std::uint64_t seed);
  /// random.Random.randrange(limit) \pre 0 < limit <= 2^32 - 1
  std::uint32_t below(std::uint32_t limit);
  template <class Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[below(static_cast<std::uint32_t>(i + 1))]);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace shard::test
