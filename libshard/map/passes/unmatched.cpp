#include "libshard/map/passes/unmatched.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/quantized.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

void UnmatchedTensors::add(std::uint32_t tensor, std::string_view name) {
  names_.add(name);
  tensors_.push_back(tensor);
}

void UnmatchedTensors::check(const Catalog& catalog) const {
  if (tensors_.empty()) return;
  Error error = wrong(fmt::format("cannot map {} {}: no rule of the map matches",
                                  tensors_.size() == 1 ? "the tensor" : "tensors", names_.text()));
  const QuantizedPart quantized = find_quantized(catalog);
  if (std::ranges::all_of(tensors_, [&](std::uint32_t tensor) { return quantized.is_plain(tensor); })) {
    throw error.suggest(Remedy::kExclude);
  }
  if (std::ranges::any_of(quantized.modules, has_formula, &QuantizedModule::form)) error.suggest(Remedy::kDequantize);
  throw error.because("the weights are quantized, and the map is for plain ones");
}

}  // namespace shard
