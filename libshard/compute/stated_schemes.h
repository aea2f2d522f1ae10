/// \file StatedSchemes: compares a model's configuration with its quantized modules. Inside libshard/compute only.
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

/// A module may have any of the schemes in the configuration, because only the libraries know to which layers a scheme
/// applies. Methods and formats that this file does not know are not compared.
class StatedSchemes {
 public:
  /// Ownership: `facts` must outlive this object.
  explicit StatedSchemes(const QuantizationFacts& facts);

  /// The configuration's statement of a method or format unknown to this file, for people; empty if there is none.
  std::string unknown_form() const;
  /// A stated format that is none of that method's, for people; empty if there is none.
  std::string unknown_format(std::string_view method) const;
  /// True if the list `ignore` names the module: by its name, or by an RE2 pattern after "re:", which must match the
  /// beginning of the name. Cost: linear in the name. \throws Error kUnsupported  the patterns are too slow
  bool ignores(std::string_view module) const;
  /// The reason why the module contradicts the configuration, for people; empty if it does not. \param codes  the
  ///   module's formula
  std::string contradiction(const QuantizedModule& module, const ScaledCodes& codes) const;
  /// The bits that all schemes with this number of groups state. 0: none, or several.
  int bits_of_groups(std::int64_t columns, std::int64_t group_columns) const;
  /// The stated size that gives this number of groups of `all` codes, of which the last one may be short: one for these
  /// bits, or else one for others. Without such a size, that of equal groups. 0: neither, or several sizes.
  std::int64_t size_of_groups(int bits, std::int64_t all, std::int64_t groups) const;

 private:
  std::string contradiction_of_blocks(const ScaledCodes& codes) const;
  std::string contradiction_of_numbers(const ScaledCodes& codes) const;
  std::string contradiction_of_strategy(const ScaledCodes& codes) const;
  /// For codes without zero points, or without a group index.
  std::string contradiction_of_parts(const QuantizedModule& module, const ScaledCodes& codes) const;

  const QuantizationFacts& facts_;
  std::set<std::string_view> formats_, strategies_;
  std::set<std::int64_t> bits_, sizes_;  ///< The bits of a code and the codes of a group, in any scheme.
  HashSet<std::string_view> names_;
  PatternSets patterns_{RE2::ANCHOR_START};
  bool has_patterns_ = false;
  MatchTime time_;
};

}  // namespace shard
