/// \file
/// Dequantization: from the tensors of quantized modules to formulas for their weights.
///
/// The scheme of a module follows from its tensors (catalog/quantized.h). Numbers that shapes leave open, such as the
/// bits of a code, are those of the configuration which fit the shapes. Results have plain names (`X.weight`, GPT-OSS's
/// `NAME`) and the shapes of the weights before quantization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libshard/catalog/quantized.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compute/formula.h"

namespace shard {

/// Returns the bytes of a small tensor of the catalog. \throws Error as the reader; kCorruption  it is not small
using ReadSmall = std::function<std::vector<std::byte>(std::uint32_t tensor)>;

/// The weights of all quantized modules as formulas of `dtype`. Their tensors are dropped, except for biases and the
/// like. States of optimizers stay as they are. `read` is called only for shapes and descriptions that nothing else
/// tells.
/// \throws Error kCorruption   by name: scales without a weight, a weight without its scales, shapes that do not fit
///   each other or the configuration
/// \throws Error kUnsupported  a form that has no formula, by name
/// Cost: linear in the tensors.
Computation find_formulas(const Catalog& catalog, DType dtype, const QuantizationFacts& facts, const ReadSmall& read);

/// The source with plain weights of `dtype` in place of quantized modules; `inner` itself if it has none.
/// \throws Error  as find_formulas and ComputedReader
std::unique_ptr<Reader> dequantized(std::unique_ptr<Reader> inner, DType dtype, const QuantizationFacts& facts);

}  // namespace shard
