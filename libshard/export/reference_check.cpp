#include "libshard/export/reference_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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

}  // namespace shard
