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
#include "libshard/core/findings.h"

namespace shard {

/// The limit on the bytes of a small tensor.
inline constexpr std::int64_t kMostSmallBytes = 1 << 20;
/// Returns the bytes of a small tensor of the catalog. \throws Error as the reader; kCorruption  it is not small
using ReadSmall = std::function<std::vector<std::byte>(std::uint32_t tensor)>;
/// Reads from `reader`, which must outlive the result.
ReadSmall small_reader(Reader& reader);

/// The weights of all quantized modules as formulas of `dtype`. Their tensors are dropped, except for biases and the
/// like. States of optimizers stay as they are. `read` is called only for shapes and descriptions that no other
/// tensor or file states, and for zero points that must all be 0.
///
/// The configuration must allow each form, number of bits and size of groups, and its list `ignore` must not name the
/// module. If the list names a module of integers without scales, they are plain.
/// \param findings  receives by name, with kCorruption: scales without a weight, a weight without its scales, shapes
///   that do not fit each other or the configuration. If it does not throw, such a module has no part in the result.
/// \throws Error kUnsupported  a form that has no formula, by name
/// Cost: linear in the tensors.
Computation find_formulas(const Catalog& catalog, DType dtype, const QuantizationFacts& facts, const ReadSmall& read,
                          Findings& findings = throwing_findings());

/// The source with plain weights of `dtype` in place of quantized modules; `inner` itself if it has none.
/// \throws Error  as find_formulas and ComputedReader
/// \param findings  as for find_formulas. A Salvage also receives the weights of which an operand is lost.
std::unique_ptr<Reader> dequantized(std::unique_ptr<Reader> inner, DType dtype, const QuantizationFacts& facts,
                                    Findings& findings = throwing_findings());

}  // namespace shard
