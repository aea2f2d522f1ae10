#include "apps/shardctl/source/inspect_numbers.h"

#include <algorithm>
#include <map>

namespace shard::app {
Totals totals(const Catalog& catalog, const Selection& selection) {
  Totals sum;
  std::vector<bool> seen(catalog.tensors.size(), false);
  for (const SelectedTensor& selected : selection.tensors) {
    const Tensor& tensor = catalog.tensors[selected.source];
    const std::uint32_t root = catalog.original_of(selected.source);
    if (seen[root]) continue;
    seen[root] = true;
    const std::int64_t elements = element_count(tensor.shape), bytes = packed_bytes(elements, selected.dtype);
    sum.elements += elements;
    sum.logical_bytes += bytes;
    sum.bytes_of_dtype[static_cast<std::size_t>(selected.dtype)] += bytes;
    for (const Chunk& chunk : catalog.chunks_of(tensor)) {
      sum.stored_bytes += packed_bytes(element_count(chunk.sizes), catalog.stored[chunk.stored].dtype);
    }
  }
  return sum;
}

std::vector<QuantizedCount> quantized_counts(const Catalog& catalog) {
  const auto may_be_codes = [](const Tensor& tensor) {
    return tensor.shape.size() > 0 && (is_integer(tensor.dtype) || is_float(tensor.dtype)) &&
           !is_plain_float(tensor.dtype);
  };
  if (std::ranges::none_of(catalog.tensors, may_be_codes)) return {};
  std::map<QuantizedForm, std::int64_t> counts;
  for (const QuantizedModule& module : find_quantized(catalog).modules)
    counts[module.form] += module.has_weight ? 1 : 0;
  std::vector<QuantizedCount> found;
  for (const auto& [form, modules] : counts) {
    if (modules > 0) found.push_back({form, modules});
  }
  return found;
}

Aliases::Aliases(const Catalog& catalog, const Selection& selection)
    : catalog_(catalog), selection_(selection), first_(catalog.tensors.size(), kNoIndex) {
  for (std::uint32_t i = 0; i < selection.tensors.size(); ++i) {
    std::uint32_t& first = first_[catalog.original_of(selection.tensors[i].source)];
    if (first == kNoIndex) first = i;
  }
}

std::optional<std::string_view> Aliases::first_of(const SelectedTensor& selected) const {
  const SelectedTensor& first = selection_.tensors[first_[catalog_.original_of(selected.source)]];
  return first.source == selected.source ? std::nullopt : std::optional<std::string_view>(first.name);
}

std::vector<std::string_view> repeated_names(const Selection& selection) {
  std::vector<std::string_view> repeated;
  std::size_t next = 0;
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    const std::string_view name = selection.tensors[i].name;
    while (next < selection.objects.size() && selection.objects[next].name < name) ++next;
    const bool of_object = next < selection.objects.size() && selection.objects[next].name == name;
    if (of_object || (i > 0 && selection.tensors[i - 1].name == name)) repeated.push_back(name);
  }
  for (std::size_t i = 1; i < selection.objects.size(); ++i) {
    if (selection.objects[i - 1].name == selection.objects[i].name) repeated.push_back(selection.objects[i].name);
  }
  std::ranges::sort(repeated);
  return repeated;
}

}  // namespace shard::app
