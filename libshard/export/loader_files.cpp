#include "libshard/export/loader_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "libshard/core/name_pattern.h"
#include "libshard/core/suffixes.h"

namespace shard {

namespace {

constexpr std::string_view kIndexEnd = ".index", kJsonEnd = ".json";

std::string_view stem_of(Loader loader, std::string_view suffix) {
  switch (loader) {
    case Loader::kDiffusers:
      return "diffusion_pytorch_model";
    case Loader::kPeft:
      return "adapter_model";
    case Loader::kTransformers:
      return suffix == kSafetensorsSuffix ? "model" : "pytorch_model";
  }
  return {};
}

enum class Form { kWhole, kIndex, kPart };

struct WeightsName {
  Form form;
  std::string_view variant;
};

/// Removes `end` from the text's end. \returns false if the text does not end with it.
bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

bool is_variant(std::string_view text) { return !text.empty() && text.find('.') == std::string_view::npos; }

/// The variant in a text before or after the count of a part: "" for none, otherwise ".fp16". Nothing for other texts.
std::optional<std::string_view> read_variant(std::string_view text) {
  if (text.empty()) return text;
  return text.starts_with('.') && is_variant(text.substr(1)) ? std::optional(text.substr(1)) : std::nullopt;
}

/// A file of tensors. `middle` is the text between the stem and the suffix: "", ".fp16", "-00001-of-00002",
/// ".fp16-00001-of-00002", "-00001-of-00002.fp16". `suffix_word` in the place of a variant is none, because some models
/// have model.safetensors-00001-of-00002.safetensors.
std::optional<WeightsName> parse_middle(std::string_view middle, std::string_view suffix_word) {
  const std::optional<CountedName> counted = read_counted_name(middle);
  if (!counted) {
    const std::optional<std::string_view> variant = read_variant(middle);
    return variant ? std::optional(WeightsName{Form::kWhole, *variant}) : std::nullopt;
  }
  const std::optional<std::string_view> before = read_variant(counted->base.substr(0, counted->base.size() - 1));
  const std::optional<std::string_view> after = read_variant(counted->end);
  if (!before || !after || (!before->empty() && !after->empty())) return std::nullopt;
  return WeightsName{Form::kPart, *before == suffix_word ? std::string_view() : before->empty() ? *after : *before};
}

/// Parses a name that begins with `stem` and ends with `suffix`. Nothing if it is not a file of weights.
std::optional<WeightsName> parse_name(std::string_view name, std::string_view stem, std::string_view suffix) {
  if (!name.starts_with(stem)) return std::nullopt;
  std::string_view middle = name.substr(stem.size());
  if (take_end(middle, suffix)) return parse_middle(middle, suffix.substr(1));
  if (!take_end(middle, kJsonEnd)) return std::nullopt;
  std::string_view variant;  // model.safetensors.index.fp16.json, or model.fp16.safetensors.index.json.
  if (!take_end(middle, kIndexEnd)) {
    const std::size_t dot = middle.rfind('.');
    if (dot == std::string_view::npos || !is_variant(variant = middle.substr(dot + 1))) return std::nullopt;
    middle.remove_suffix(middle.size() - dot);
    if (!take_end(middle, kIndexEnd)) return std::nullopt;
  }
  if (!take_end(middle, suffix)) return std::nullopt;
  if (!middle.empty() && variant.empty() && middle.starts_with('.')) variant = std::exchange(middle, {}).substr(1);
  return middle.empty() ? std::optional(WeightsName{Form::kIndex, variant}) : std::nullopt;
}

struct Names {
  std::string whole, index;
  std::vector<std::string> parts;
};

/// Adds the sets of one variant, in the order in which the loader searches for them.
void add_sets(const Names& names, const LoaderFiles& common, Loader loader, std::vector<LoaderFiles>& sets) {
  LoaderFiles whole = common, parts = common;
  whole.weights = {names.whole};
  parts.index = names.index;
  parts.weights = names.parts;
  const bool has_parts = !names.index.empty() || !names.parts.empty();
  // transformers looks for a single file first, diffusers for an index. Neither opens parts without an index.
  const bool is_index_first = loader == Loader::kDiffusers && !names.index.empty();
  if (has_parts && is_index_first) sets.push_back(parts);
  if (!names.whole.empty()) sets.push_back(whole);
  if (has_parts && !is_index_first) sets.push_back(parts);
}

}  // namespace

std::vector<LoaderFiles> loader_files(const std::vector<std::string>& names, Loader loader) {
  std::vector<LoaderFiles> sets;
  for (const std::string_view suffix : {kSafetensorsSuffix, kBinSuffix}) {
    const std::string_view stem = stem_of(loader, suffix);
    std::map<std::string_view, Names> by_variant;
    for (const std::string& name : names) {
      const std::optional<WeightsName> parsed = parse_name(name, stem, suffix);
      if (!parsed) continue;
      Names& of_variant = by_variant[parsed->variant];
      if (parsed->form == Form::kWhole) of_variant.whole = name;
      if (parsed->form == Form::kIndex) of_variant.index = name;
      if (parsed->form == Form::kPart) of_variant.parts.push_back(name);
    }
    for (auto& [variant, of_variant] : by_variant) {
      std::ranges::sort(of_variant.parts);
      add_sets(of_variant, {std::string(stem), std::string(suffix), std::string(variant), {}, {}}, loader, sets);
    }
  }
  std::ranges::stable_sort(sets, {}, [](const LoaderFiles& set) { return !set.variant.empty(); });
  return sets;
}

}  // namespace shard
