/// \file
/// Figures about tensors for `inspect` and the summaries.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/element_counts.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/selection.h"

namespace shard::app {

struct Totals {
  std::int64_t elements = 0;                               ///< Aliases count once.
  std::int64_t logical_bytes = 0;                          ///< Aliases count once.
  std::int64_t stored_bytes = 0;                           ///< All chunks with all replicas; aliases count once.
  std::array<std::int64_t, kDTypeCount> bytes_of_dtype{};  ///< Parts of logical_bytes.
};
Totals totals(const Catalog& catalog, const Selection& selection);

/// The quantized modules of a form.
struct QuantizedCount {
  QuantizedForm form;
  std::int64_t modules = 0;
};
/// By form; empty if nothing is quantized. Judges by the tensors only, whether they are chosen or not. Cost: linear in
/// the names if a tensor has a dtype of codes.
std::vector<QuantizedCount> quantized_counts(const Catalog& catalog);

/// Finds the chosen tensors that are the same tensor under different names.
class Aliases {
 public:
  Aliases(const Catalog& catalog, const Selection& selection);
  /// The resulting name of the first chosen tensor that `selected` is an alias of, if this is a different one.
  std::optional<std::string_view> first_of(const SelectedTensor& selected) const;

 private:
  const Catalog& catalog_;
  const Selection& selection_;
  std::vector<std::uint32_t> first_;  ///< Index in the selection, by the root of the aliases in the catalog.
};

/// Names shared by several chosen tensors or objects, sorted.
std::vector<std::string_view> repeated_names(const Selection& selection);

}  // namespace shard::app
