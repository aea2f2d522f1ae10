#include "libshard/export/reference_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "libshard/catalog/selection/glob.h"

namespace shard {

namespace {

std::vector<std::int64_t> numbers(Dims dims) { return {dims.begin(), dims.end()}; }

/// The prefix of whole parts that converts every name in `shorter` to one in `longer`. Empty if there is none.
std::string common_prefix(const std::vector<std::string>& shorter, const std::vector<std::string>& longer) {
  if (shorter.empty() || longer.empty()) return {};
  for (const std::string& name : longer) {
    if (!name.ends_with("." + shorter.front())) continue;
    const std::string prefix = name.substr(0, name.size() - shorter.front().size());
    const auto has = [&](const std::string& each) { return std::ranges::binary_search(longer, prefix + each); };
    if (std::ranges::all_of(shorter, has)) return prefix;
  }
  return {};
}

constexpr std::size_t kMostGlobs = 4;

/// The whole parts with which all names begin. Empty if there are none, or if they are a name.
std::string_view common_parts(std::span<const std::string_view> names) {
  std::string_view common = names.front();
  const auto is_above = [&](std::string_view name) {
    return name.size() > common.size() && name[common.size()] == '.' && name.starts_with(common);
  };
  for (const std::string_view name : names) {
    while (!common.empty() && !is_above(name)) {
      const std::size_t dot = common.rfind('.');
      common = common.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
  }
  return common;
}

}  // namespace

ReferenceDifference compare_with_reference(std::span<const SelectedTensor> model, const Catalog& source,
                                           const Catalog& reference, const std::set<std::string>& may_lack) {
  ReferenceDifference difference;
  std::size_t own = 0, theirs = 0;
  const auto is_repeated = [&] { return own > 0 && own < model.size() && model[own].name == model[own - 1].name; };
  while (own < model.size() || theirs < reference.tensors.size()) {
    const bool has_own = own < model.size(), has_theirs = theirs < reference.tensors.size();
    if (is_repeated()) {
      ++own;
    } else if (!has_theirs || (has_own && model[own].name < reference.tensors[theirs].name)) {
      difference.unexpected.emplace_back(model[own++].name);
    } else if (!has_own || reference.tensors[theirs].name < model[own].name) {
      std::string name(reference.tensors[theirs++].name);
      if (!may_lack.contains(name)) difference.missing.push_back(std::move(name));
    } else {
      const Dims found = source.tensors[model[own].source].shape, expected = reference.tensors[theirs].shape;
      if (found != expected) {
        difference.shapes.push_back({std::string(model[own].name), numbers(expected), numbers(found)});
      }
      ++own, ++theirs;
    }
  }
  return difference;
}

std::vector<std::string> lines_of(const ReferenceDifference& difference) {
  std::vector<std::string> lines;
  for (const std::string& name : difference.missing) lines.push_back("missing: " + name);
  for (const std::string& name : difference.unexpected) lines.push_back("unexpected: " + name);
  for (const auto& each : difference.shapes) {
    lines.push_back(fmt::format("shape: {}: expected [{}], found [{}]", each.name, fmt::join(each.expected, ", "),
                                fmt::join(each.found, ", ")));
  }
  return lines;
}

PrefixGuess guess_prefix(const ReferenceDifference& difference) {
  PrefixGuess guess;
  guess.strip = common_prefix(difference.missing, difference.unexpected);
  if (guess.strip.empty()) guess.add = common_prefix(difference.unexpected, difference.missing);
  return guess;
}

std::vector<std::string> guess_exclusions(std::span<const std::string_view> unexpected,
                                          std::span<const std::string_view> others) {
  std::set<std::string> globs;
  for (const std::string_view name : unexpected) {
    globs.insert(glob_of_layers(name));
    if (globs.size() > kMostGlobs) break;
  }
  if (globs.size() > kMostGlobs) {
    const std::string_view outer = common_parts(unexpected);
    if (outer.empty()) return {};
    globs = {glob_of_name(outer) + ".**"};
  }
  const std::vector<std::string> guesses(globs.begin(), globs.end());
  const GlobSet set(guesses);
  const bool matches_others = std::ranges::any_of(others, [&](std::string_view name) { return set.matches(name); });
  return matches_others ? std::vector<std::string>() : guesses;
}

}  // namespace shard
