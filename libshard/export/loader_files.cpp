#include "libshard/export/loader_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "libshard/core/suffixes.h"

namespace shard {

namespace {

constexpr std::string_view kIndexEnd = ".index", kJsonEnd = ".json";
constexpr std::string_view kOf = "-of-", kDigits = "0123456789";

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

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kDigits) == std::string_view::npos;
}

/// "00001-of-00002".
bool is_count(std::string_view text) {
  const std::size_t of = text.find(kOf);
  return of != std::string_view::npos && is_number(text.substr(0, of)) && is_number(text.substr(of + kOf.size()));
}

bool is_variant(std::string_view text) { return !text.empty() && text.find('.') == std::string_view::npos; }

/// The text between the stem and the suffix of a file of tensors: "", ".fp16", "-00001-of-00002",
/// ".fp16-00001-of-00002", "-00001-of-00002.fp16". `suffix_word` in the place of a variant is none: some models have
/// model.safetensors-00001-of-00002.safetensors.
std::optional<WeightsName> parse_middle(std::string_view middle, std::string_view suffix_word) {
  if (middle.empty()) return WeightsName{Form::kWhole, {}};
  if (middle.starts_with('-')) {
    const std::size_t dot = middle.find('.');
    const std::string_view variant = dot == std::string_view::npos ? std::string_view() : middle.substr(dot + 1);
    const bool fits = is_count(middle.substr(1, dot == std::string_view::npos ? dot : dot - 1)) &&
                      (dot == std::string_view::npos || is_variant(variant));
    return fits ? std::optional(WeightsName{Form::kPart, variant}) : std::nullopt;
  }
  if (!middle.starts_with('.')) return std::nullopt;
  middle.remove_prefix(1);
  const std::size_t of = middle.rfind(kOf);
  const std::size_t dash = of == std::string_view::npos || of == 0 ? of : middle.rfind('-', of - 1);
  if (dash == std::string_view::npos || !is_count(middle.substr(dash + 1))) {
    return is_variant(middle) ? std::optional(WeightsName{Form::kWhole, middle}) : std::nullopt;
  }
  const std::string_view variant = middle.substr(0, dash);
  if (variant == suffix_word) return WeightsName{Form::kPart, {}};
  return is_variant(variant) ? std::optional(WeightsName{Form::kPart, variant}) : std::nullopt;
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
