/// \file
/// Products of two matrices with a short inner dimension, as the inner loops of adapters need them. Pure functions over
/// spans. Inside libshard/compute only.
///
/// An element is the sum of left * right over the inner dimension, in order, and each step is a fused multiply-add
/// (std::fma, rounded once) on every processor. Most have an instruction for it. Others emulate it exactly and slowly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shard {

/// The columns of a strip, see ProductPart.
constexpr std::int64_t kProductStrip = 48;

/// Some rows and columns of a product. The right factor is packed: strips of kProductStrip columns follow one another,
/// each row by row, so that it is read in the order in which it is stored. The columns that the last strip lacks are 0.
struct ProductPart {
  const float* left;  ///< Its first row, row-major.
  std::int64_t rows, rank;
  const float* right;
  std::int64_t from, columns;  ///< The columns of the part.
};

/// Fills `out`, row-major, with the elements of a part.
void compute_products(const ProductPart& part, std::span<float> out);
/// Adds weight * element to each number in `sums`, fused too.
void add_products(const ProductPart& part, float weight, std::span<float> sums);
/// Fills `sums` with the sums of `numbers` and weight * element, all in bfloat16, to which each sum is rounded once.
/// Alignment: any. `sums` may be `numbers`.
/// \param stride  the numbers from a row to the next, in both
void add_products_to_bfloat16(const ProductPart& part, float weight, const std::byte* numbers, std::byte* sums,
                              std::int64_t stride);

/// An implementation for float32 or bfloat16. If `numbers` is null, elements are stored.
using ProductLoop = void (*)(const ProductPart& part, float weight, const std::byte* numbers, std::byte* out,
                             std::int64_t stride);
struct ProductLoops {
  ProductLoop float32, bfloat16;
};
/// The implementations that this processor can run, which give equal bits. The last ones are used.
std::vector<ProductLoops> product_loops();

}  // namespace shard
