#include "libshard/compute/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "libshard/core/checked.h"

namespace shard {
namespace {

struct Matrices {
  std::int64_t rows, rank, columns;
  std::vector<float> left, right, packed;

  Matrices(std::int64_t r, std::int64_t k, std::int64_t c, std::mt19937& random) : rows(r), rank(k), columns(c) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * rank; ++i) left.push_back(normal(random));
    for (std::int64_t i = 0; i < rank * columns; ++i) right.push_back(normal(random));
    packed.resize(static_cast<std::size_t>(ceil_div(columns, kProductStrip) * kProductStrip * rank));
    for (std::int64_t i = 0; i < rank * columns; ++i) {
      const std::int64_t row = i / columns, column = i % columns, in_strip = column % kProductStrip;
      packed[static_cast<std::size_t>((column - in_strip) * rank + row * kProductStrip + in_strip)] =
          right[static_cast<std::size_t>(i)];
    }
  }

  float element(std::int64_t row, std::int64_t column) const {
    float sum = 0;
    for (std::int64_t k = 0; k < rank; ++k) {
      sum = std::fma(left[static_cast<std::size_t>(row * rank + k)],
                     right[static_cast<std::size_t>(k * columns + column)], sum);
    }
    return sum;
  }
};

/// Every number of rows, and ranges of columns that begin and end inside strips. All implementations give equal bits.
TEST(Products, AreFusedSumsInOrder) {
  std::mt19937 random(1);
  for (std::int64_t rows = 1; rows < 20; ++rows) {
    const Matrices of(rows, 1 + static_cast<std::int64_t>(random() % 20), 1 + static_cast<std::int64_t>(random() % 200),
                      random);
    for (int range = 0; range < 10; ++range) {
      const auto from = static_cast<std::int64_t>(random()) % of.columns;
      const std::int64_t columns = 1 + static_cast<std::int64_t>(random()) % (of.columns - from);
      const ProductPart part{of.left.data(), rows, of.rank, of.packed.data(), from, columns};
      std::vector<float> stored(static_cast<std::size_t>(rows * columns)), added(stored.size(), 0.5F);
      compute_products(part, stored);
      add_products(part, 0.3F, added);
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const float element = of.element(i / columns, from + i % columns);
        ASSERT_EQ(stored[static_cast<std::size_t>(i)], element) << rows << " rows from column " << from;
        ASSERT_EQ(added[static_cast<std::size_t>(i)], std::fma(0.3F, element, 0.5F));
      }
      for (const ProductLoop loop : product_loops()) {
        std::vector<float> other(stored.size()), sums(stored.size(), 0.5F);
        const float weight = 0.3F;
        loop(part, nullptr, other);
        loop(part, &weight, sums);
        ASSERT_EQ(other, stored);
        ASSERT_EQ(sums, added);
      }
    }
  }
}

}  // namespace
}  // namespace shard
