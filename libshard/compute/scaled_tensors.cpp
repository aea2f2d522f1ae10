#include "libshard/compute/scaled_tensors.h"

#include <utility>
#include <vector>

#include "libshard/compute/unrounded_reader.h"

namespace shard {

namespace {

/// WeightedSum adds the constant first, which gives the same number: value * scale + add.
WeightedSum sum_of(const ScaledTensor& scaled, std::uint32_t reader) {
  WeightedSum sum;
  const auto leaf = std::make_shared<TensorExpression>(TensorExpression{Leaf{scaled.tensor, reader}});
  sum.terms.push_back({scaled.is_inverse ? 1 : scaled.scale, leaf});
  sum.constant = scaled.is_inverse ? -scaled.add : scaled.add;
  if (scaled.is_inverse) sum.divisor = scaled.scale;
  return sum;
}

}  // namespace

std::unique_ptr<Reader> with_scaled_tensors(std::unique_ptr<Reader> inner, std::span<const ScaledTensor> tensors,
                                            std::optional<DType> dtype, ComputedReaders computed) {
  std::unique_ptr<UnroundedReader> unrounded;
  if (!computed.empty()) unrounded = std::make_unique<UnroundedReader>(*inner, std::move(computed));
  Computation computation;
  for (const ScaledTensor& scaled : tensors) {
    Formula formula = formula_like(inner->catalog().tensors[scaled.tensor]);
    formula.dtype = dtype.value_or(formula.dtype);
    formula.value = {sum_of(scaled, unrounded != nullptr && unrounded->has(scaled.tensor) ? 1 : 0)};
    computation.formulas.push_back(std::move(formula));
    computation.dropped.push_back(scaled.tensor);
  }
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::move(inner));
  if (unrounded != nullptr) readers.push_back(std::move(unrounded));
  return std::make_unique<ComputedReader>(std::move(readers), std::move(computation));
}

}  // namespace shard
