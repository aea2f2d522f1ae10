/// \file Conversions of selected tensors to other dtypes: the rules that request them, and the check for conversions
///   that would destroy data. Pure.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/error.h"

namespace shard {

/// A conversion would change a quantized module.
class QuantizedCast : public Error {
 public:
  QuantizedCast(const Error& error, std::vector<std::string> globs) : Error(error), globs_(std::move(globs)) {}

  /// Globs over resulting names. With "=keep", they are rules that keep such modules unchanged. Empty: too many.
  const std::vector<std::string>& globs() const { return globs_; }

 private:
  std::vector<std::string> globs_;
};

/// Sets the dtypes that rules request, see SelectionOptions::cast. "GLOB=keep" keeps tensors unchanged, and takes
/// precedence over all other rules. `select` calls this, but not `check_casts`, which is left to its caller. \pre the
/// dtypes are the source's
/// \throws Error kInvalidArgument  as for `select`; kUnsupported  there is no such cast
void apply_casts(const std::vector<std::string>& rules, std::vector<SelectedTensor>& tensors);

/// For each tensor, whether a rule decides on its dtype.
std::vector<bool> decided_by_rules(const std::vector<std::string>& rules, const Catalog& source,
                                   std::span<const SelectedTensor> tensors);

/// The treatment of float8 tensors in a checkpoint without any scales: QuantizedPart::lone_floats.
enum class LoneFloats {
  kConvert,  ///< They are ordinary numbers, and a warning names them.
  kRefuse,   ///< They are weights whose scales are missing.
};

/// Checks the tensors whose dtype is not the source's. \param facts  about the source
/// \returns warnings: integers and scales that the new dtype cannot represent exactly, floats that lose their
/// fractions, complex numbers that lose their imaginary parts, and lone floats.
/// \throws QuantizedCast  kUnsupported: one belongs to a quantized module. Error kUnsupported  there is no such cast.
std::vector<std::string> check_casts(const Catalog& source, std::span<const SelectedTensor> tensors,
                                     const QuantizationFacts& facts, LoneFloats lone = LoneFloats::kConvert);

}  // namespace shard
