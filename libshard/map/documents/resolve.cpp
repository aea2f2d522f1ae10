#include "libshard/map/documents/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/document_rules.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::string_view kKey = "key";
constexpr std::size_t kMaxCopiedBytes = 32 << 20;  ///< For rules, including the copies for all states.

void refuse(const MapDocument& document, const MapVariables& variables) {
  for (const MapRefusal& refusal : document.refusals) {
    const auto is_known = [&](const MapCondition& each) { return variables.find(each.first) != nullptr; };
    if (!std::ranges::all_of(refusal.when, is_known) || !variables.allow(refusal.when)) continue;
    std::string facts;
    for (const auto& [name, values] : refusal.when) {
      facts += fmt::format("{}{} is {}", facts.empty() ? "" : ", ", name, text_of(*variables.find(name)));
    }
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the map {} does not fit this checkpoint: {}", document.name, facts))
        .because(refusal.because);
  }
}

/// Calls `change` with each template of a rule.
template <class Change>
void for_each_name(MapRule& rule, Change&& change) {
  for (NameTemplate& logical : rule.logical) change(logical);
  change(rule.stored);
  for (NameTemplate& other : rule.others) change(other);
  if (rule.beside) change(*rule.beside);
  if (!rule.block) return;
  for (NameTemplate& of : rule.block->of) change(of);
}

void fill_in(NameTemplate& names, const MapDocument& document, const MapVariables& variables) {
  for (const MapVariable& variable : document.vars) {
    if (!contains(names.placeholders(), variable.name)) continue;
    const MapValue* const value = variables.find(variable.name);
    if (value == nullptr) throw variables.missing(variable.name);
    names = names.with(variable.name, NameTemplate::plain(text_of(*value)));
  }
}

/// Stacks an index in the rules whose stored names contain its placeholder.
void stack_index(const std::string& index, std::vector<MapRule>& rules) {
  for (MapRule& rule : rules) {
    if (!contains(rule.stored.placeholders(), index)) continue;
    rule.stored = rule.stored.without(index);
    for (NameTemplate& other : rule.others) other = other.without(index);
    for (MapStack& entry : rule.stack) ++entry.dim;
    rule.stack.insert(rule.stack.begin(), {index, 0});
  }
}

void stack_indices(MapDocument& document, const MapVariables& variables) {
  for (const MapIndex& index : document.index) {
    if (!index.stacked) continue;
    for (const auto& [name, values] : *index.stacked) {
      if (variables.find(name) == nullptr) throw variables.missing(name);
    }
    if (variables.allow(*index.stacked)) stack_index(index.name, document.rules);
  }
}

MapRule of_state(MapRule rule, const MapState& state) {
  for (NameTemplate& logical : rule.logical) logical = state.logical.with(kKey, logical);
  rule.stored = state.stored.with(kKey, rule.stored);
  for (NameTemplate& other : rule.others) other = state.stored.with(kKey, other);
  if (rule.beside) rule.beside = state.logical.with(kKey, *rule.beside);
  rule.where += fmt::format(" of state '{}'", state.name);
  rule.dtype = state.dtype;
  if (rule.arithmetic) rule.arithmetic->values = *state.values;
  rule.optional = true;
  rule.block.reset();
  return rule;
}

/// The memory of a rule's contents: bytes of names, and list entries at their least size.
std::size_t weight_of(const MapRule& rule) {
  constexpr std::size_t kEntry = 100;
  std::size_t bytes = rule.stored.text().size() + rule.match.size() + rule.where.size();
  for (const NameTemplate& names : rule.logical) bytes += kEntry + names.text().size();
  for (const NameTemplate& names : rule.others) bytes += kEntry + names.text().size();
  std::size_t entries = rule.shard.size() + rule.on.size() + rule.stack.size() + rule.permute.size();
  for (const MapCut& cut : rule.shard) entries += cut.widths.size();
  for (const MapOn& on : rule.on) entries += on.coordinates.size();
  if (rule.concat) {
    entries += rule.concat->sizes.size() + rule.concat->replicas.size();
    for (const std::vector<Expression>& widths : rule.concat->widths) entries += 1 + widths.size();
  }
  for (const auto& [name, values] : rule.when) entries += 1 + values.size();
  return bytes + kEntry * entries;
}

/// Limits the total size, because every rule is copied for every state and family with all its contents.
void check_product(const MapDocument& document) {
  const std::size_t families = document.flatten ? document.flatten->families.size() : 0;
  const std::size_t rules = document.rules.size(), copies = document.states.size() + families;
  if (copies + 1 > kMaxResolvedRules / std::max<std::size_t>(1, rules)) {
    throw wrong("cannot use the map: its rules are too many for its states")
        .expected(fmt::format("at most {} rules in all states together", kMaxResolvedRules))
        .found(fmt::format("{} rules and {} states", rules, copies));
  }
  std::size_t bytes = 0;
  for (const MapRule& rule : document.rules) bytes += weight_of(rule);
  if (copies == 0 || bytes <= kMaxCopiedBytes / copies) return;
  throw wrong("cannot use the map: its rules are too long for its states")
      .expected(fmt::format("at most {} bytes of rules in all states together", kMaxCopiedBytes))
      .found(fmt::format("{} bytes and {} states", bytes, copies));
}

/// Adds the rules of tensors in flat buffers. The first `count` rules are the document's own. They are moved into
/// buffers, or repeated for them.
void lay_in_buffers(MapDocument& document, const MapVariables& variables, std::size_t count) {
  MapFlatten& flatten = *document.flatten;
  for (std::size_t family = 0; family < flatten.families.size(); ++family) {
    const std::string state = flatten.families[family].state;
    fill_in(flatten.families[family].stored, document, variables);
    for (std::size_t i = 0; i < count; ++i) {
      if (document.rules[i].drops) continue;
      if (state.empty()) {
        document.rules[i].family = family;
      } else if (document.rules[i].match.empty()) {
        document.rules.push_back(of_state(document.rules[i], flat_state(state)));
        document.rules.back().family = family;
      }
    }
  }
  for (auto& item : flatten.order) {
    for (NameTemplate& names : item) fill_in(names, document, variables);
  }
  for (auto& [names, shape] : flatten.shapes) fill_in(names, document, variables);
}

/// Restricts a rule to the ranks that write its entry of `files`.
void leave_to_writers(MapRule& rule, const std::string& state, const MapDocument& document) {
  const auto holds = [&](const MapFiles& files) {
    return state.empty() ? files.states.empty() : contains(files.states, state);
  };
  auto files = std::ranges::find_if(document.files, holds);
  if (files == document.files.end()) files = document.files.begin();
  if (files == document.files.end()) return;
  for (const MapOn& writer : files->writer) {
    if (!contains(rule.on, writer.axis, &MapOn::axis)) rule.on.push_back(writer);
  }
}

}  // namespace

MapState flat_state(const std::string& state) {
  return {state, NameTemplate(fmt::format("optimizer.state.{{key}}.{}", state)), NameTemplate("{key}")};
}

void resolve(MapDocument& document, const MapVariables& variables) {
  refuse(document, variables);
  check_product(document);
  stack_indices(document, variables);
  for (MapRule& rule : document.rules) {
    if (!rule.match.empty()) continue;
    for_each_name(rule, [&](NameTemplate& names) { fill_in(names, document, variables); });
  }
  const std::size_t count = document.rules.size();
  std::vector<std::string> states(count);  // By rule.
  for (const MapState& state : document.states) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!document.rules[i].match.empty()) continue;
      document.rules.push_back(of_state(document.rules[i], state));
      states.push_back(state.name);
    }
  }
  document.states.clear();
  if (document.flatten) lay_in_buffers(document, variables, count);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!document.rules[i].family) leave_to_writers(document.rules[i], states[i], document);
  }
}

}  // namespace shard
