#include "libshard/compute/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/exec/small_float.h"

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

template <class Number>
std::byte* bytes_of(std::vector<Number>& numbers) {
  return std::as_writable_bytes(std::span(numbers)).data();
}

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
      for (const ProductLoops& loops : product_loops()) {
        std::vector<float> other(stored.size()), sums(stored.size(), 0.5F);
        loops.float32(part, 0, nullptr, bytes_of(other), columns);
        loops.float32(part, 0.3F, bytes_of(sums), bytes_of(sums), columns);
        ASSERT_EQ(other, stored);
        ASSERT_EQ(sums, added);
      }
    }
  }
}

/// Sums in bfloat16 are those in float32, each rounded. The numbers between rows remain, and NaN and infinity too.
TEST(Products, AreAddedToBfloat16) {
  std::mt19937 random(2);
  for (std::int64_t rows = 1; rows < 20; ++rows) {
    const Matrices of(rows, 3, 150, random);
    const std::int64_t from = rows % 3, columns = 149 - rows, stride = columns + rows % 2;
    const ProductPart part{of.left.data(), rows, of.rank, of.packed.data(), from, columns};
    std::vector<Bfloat16::Bits> before(static_cast<std::size_t>(rows * stride));
    for (Bfloat16::Bits& each : before) each = static_cast<Bfloat16::Bits>(random());  // Any number, also subnormal.
    before[0] = 0xFFC1, before[1] = 0x7F80, before[2] = 0xFF80, before[3] = 0x7F7F, before[4] = 0x8000;
    std::vector<Bfloat16::Bits> wanted = before;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t row = i / columns, column = i % columns;
      Bfloat16::Bits& each = wanted[static_cast<std::size_t>(row * stride + column)];
      each = Bfloat16::encode(std::fma(-0.7F, of.element(row, from + column), Bfloat16::decode(each)));
    }
    std::vector<Bfloat16::Bits> used = before;
    add_products_to_bfloat16(part, -0.7F, bytes_of(used), bytes_of(used), stride);
    ASSERT_EQ(used, wanted) << rows << " rows";
    for (const ProductLoops& loops : product_loops()) {
      std::vector<std::byte> shifted(1 + 2 * before.size());  // At an odd address.
      std::memcpy(shifted.data() + 1, before.data(), 2 * before.size());
      loops.bfloat16(part, -0.7F, bytes_of(before), shifted.data() + 1, stride);
      ASSERT_EQ(std::memcmp(shifted.data() + 1, wanted.data(), 2 * wanted.size()), 0) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace shard
