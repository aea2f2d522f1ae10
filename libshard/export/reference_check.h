/// \file Compares a model to export with a reference checkpoint of the same architecture: names and shapes. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection/selection.h"

namespace shard {

/// How a model's tensors differ from those of a reference. Names are sorted.
struct ReferenceDifference {
  struct Shapes {
    std::string name;
    std::vector<std::int64_t> expected, found;
  };
  std::vector<std::string> missing;     ///< Only the reference has them.
  std::vector<std::string> unexpected;  ///< The reference lacks them.
  std::vector<Shapes> shapes;

  bool empty() const { return missing.empty() && unexpected.empty() && shapes.empty(); }
};

/// \param model  sorted by resulting name. \param may_lack  tensors that the model need not have, because a different
///   one represents them.
ReferenceDifference compare_with_reference(std::span<const SelectedTensor> model, const Catalog& source,
                                           const Catalog& reference, const std::set<std::string>& may_lack);

/// One line for each difference: "missing: NAME [2, 3]".
std::vector<std::string> lines_of(const ReferenceDifference& difference);

/// The longest prefix of whole parts that, when removed or added, makes every name one of the reference's.
struct PrefixGuess {
  std::string strip, add;  ///< At most one is set.
};
PrefixGuess guess_prefix(const ReferenceDifference& difference);

/// A few globs that match all `unexpected` names and none of the `others`: one for the same tensors of all layers, or
/// one for all below a common beginning. Empty if there are none. \pre `unexpected` is not empty
std::vector<std::string> guess_exclusions(std::span<const std::string_view> unexpected,
                                          std::span<const std::string_view> others);

}  // namespace shard
