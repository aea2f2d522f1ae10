/// \file
/// Numbers about tensors for `inspect` and the summaries.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/element_counts.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection.h"

namespace shard::app {

struct Totals {
  std::int64_t elements = 0;                               ///< Aliases once.
  std::int64_t logical_bytes = 0;                          ///< Aliases once.
  std::int64_t stored_bytes = 0;                           ///< Every chunk, aliases once, each replica.
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

/// Which of the chosen tensors are the same tensor under another name.
class Aliases {
 public:
  Aliases(const Catalog& catalog, const Selection& selection);
  /// The resulting name of the first chosen tensor that `selected` is an alias of, if that is another one.
  std::optional<std::string_view> first_of(const SelectedTensor& selected) const;

 private:
  const Catalog& catalog_;
  const Selection& selection_;
  std::vector<std::uint32_t> first_;  ///< For each alias's root in the catalog, the index in the selection.
};

/// The names that more than one chosen tensor or object has, sorted.
std::vector<std::string_view> repeated_names(const Selection& selection);

/// The bytes of a chunk's elements in their file; `known` is false where they are not plain.
struct Place {
  bool known = false;
  std::int64_t offset_bytes = 0, span_bytes = 0;
};
Place place_of(const Catalog& catalog, const Chunk& chunk);

}  // namespace shard::app
