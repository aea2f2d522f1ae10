/// \file
/// The statements of a model's configuration about its quantized modules, to compare with the tensors. Inside
/// libshard/compute only.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/compute/formula.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// A module may have any of the stated schemes, because only the libraries know which layers a target names.
/// Statements in words that this file does not know are not compared.
class StatedSchemes {
 public:
  /// Ownership: `facts` must outlive this object.
  explicit StatedSchemes(const QuantizationFacts& facts);

  /// Whether the list `ignore` names the module: by its name, or by a pattern of RE2's syntax after "re:", which
  /// matches from the name's beginning on. Cost: linear in the name. \throws Error kUnsupported  the patterns are too
  /// slow
  bool ignores(std::string_view module) const;
  /// The first statement that the module contradicts, or empty. \param codes  its formula
  std::string contradiction(const QuantizedModule& module, const ScaledCodes& codes) const;

 private:
  std::string contradiction_of_numbers(const ScaledCodes& codes) const;

  const QuantizationFacts& facts_;
  std::set<std::string_view> formats_;
  std::set<std::int64_t> bits_, sizes_;  ///< Bits of a code and codes of a group, as any scheme states them.
  HashSet<std::string_view> names_;
  PatternSets patterns_{RE2::ANCHOR_START};
  bool has_patterns_ = false;
  MatchTime time_;
};

}  // namespace shard
