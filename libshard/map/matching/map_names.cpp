#include "libshard/map/matching/map_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/map/arithmetic/dim_runs.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::int64_t kMaxCount = 1 << 20;  ///< The limit on an index's numbers.

/// Parses a number without signs and leading zeros.
std::optional<std::int64_t> read_number(const std::string& text) {
  return text == "0" || !text.starts_with('0') ? parse_natural(text) : std::nullopt;
}

std::size_t position(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

}  // namespace

std::uint64_t GroupKeyHash::operator()(const GroupKey& key) const {
  std::uint64_t sum = hash(std::pair(key.rule, key.rank));
  for (const std::string& value : key.values) sum = hash(std::pair(sum, hash(value)));
  return sum;
}

MapNames::MapNames(const ModelMap& map) : map_(map) {
  for (const MapIndex& index : map.document().index) indices_.push_back(make_index(index));
  for (const MapRule& rule : map.document().rules) rules_.push_back(make_rule(rule));
}

/// Virtual stage v of pipeline stage p has part v * stages + p of the numbers, as in Megatron's division of layers.
MapNames::Index MapNames::make_index(const MapIndex& document) {
  Index index{&document, document.begin ? map_.variables().evaluate(*document.begin) : 0, {}, {}};
  const std::string where = fmt::format("index '{}'", document.name);
  const std::optional<std::int64_t> offset = map_.variables().evaluate_known(document.offset);
  if (offset && (*offset < -kMaxCount || *offset > kMaxCount))
    throw wrong(fmt::format("cannot use the map's {}: its offset is {}", where, *offset));
  if (!document.count) return index;
  const std::int64_t count = map_.variables().evaluate(*document.count);
  const std::int64_t stages = document.axis ? map_.mesh()[*document.axis] : 1;
  const std::int64_t chunks = map_.variables().evaluate(document.chunks);
  const bool fits = index.begin >= 0 && index.begin <= kMaxCount && count >= 0 && count <= kMaxCount && chunks >= 1 &&
                    chunks <= kMaxCount / stages;
  if (!fits) throw wrong(fmt::format("cannot use the map's {}: {} numbers in {} chunks", where, count, chunks));
  numbers_left_ -= count + stages * chunks;
  if (numbers_left_ < 0) {
    throw wrong(fmt::format("cannot use the map's {}: the indexes of the document have too many numbers", where))
        .expected(fmt::format("at most {} numbers and parts in all", kMaxIndexNumbers));
  }
  index.places.resize(static_cast<std::size_t>(count));
  const std::vector<std::vector<std::int64_t>> parts = parts_of(document, index.begin, count, stages * chunks);
  for (std::int64_t part = 0; part < stages * chunks; ++part) {
    for (std::int64_t local = 0; const std::int64_t number : parts[static_cast<std::size_t>(part)]) {
      const Place place{part % stages, part / stages, local++};
      index.places[static_cast<std::size_t>(number)] = place;
      index.numbers.emplace_back(place, number);
    }
  }
  std::ranges::sort(index.numbers);
  return index;
}

std::vector<std::vector<std::int64_t>> MapNames::parts_of(const MapIndex& document, std::int64_t begin,
                                                          std::int64_t count, std::int64_t parts) const {
  if (!document.table.empty()) return parts_of_table(document, begin, count, parts);
  const std::string where = fmt::format("index '{}'", document.name);
  std::vector<std::int64_t> widths;
  for (const Expression& width : document.counts) widths.push_back(map_.variables().evaluate(width));
  const bool has_chunks = document.axis ? parts != map_.mesh()[*document.axis] : parts > 1;
  if (!widths.empty() && has_chunks) throw wrong(fmt::format("the map's {} has counts and chunks", where));
  std::vector<std::vector<std::int64_t>> numbers(static_cast<std::size_t>(parts));
  DimCut cut{widths.empty() ? document.split : CutRule::kWidths, parts, 0, ends_of(widths, where)};
  for (std::int64_t part = 0; part < parts; ++part) {
    cut.index = part;
    const DimRange range = cut_range(count, cut, where);
    for (std::int64_t i = 0; i < range.size; ++i) {
      numbers[static_cast<std::size_t>(part)].push_back(range.begin + i);
    }
  }
  return numbers;
}

/// \throws Error kInvalidArgument  the number of parts is wrong, or a number is not in the table exactly once
std::vector<std::vector<std::int64_t>> MapNames::parts_of_table(const MapIndex& document, std::int64_t begin,
                                                                std::int64_t count, std::int64_t parts) const {
  const auto misfit = [&](const std::string& what) {
    return wrong(fmt::format("the table of the map's index '{}' {}", document.name, what));
  };
  if (std::ssize(document.table) != parts) {
    throw misfit("does not have a list for each part").expected(parts).found(document.table.size());
  }
  std::vector<std::vector<std::int64_t>> numbers;
  std::vector<bool> is_there(static_cast<std::size_t>(count));
  std::int64_t found = 0;
  for (const std::vector<Expression>& part : document.table) {
    numbers.emplace_back();
    for (const Expression& each : part) {
      const std::int64_t number = map_.variables().evaluate(each);
      const bool fits =
          number >= begin && number - begin < count && !is_there[static_cast<std::size_t>(number - begin)];
      if (!fits) throw misfit("has a number twice, or one that is not the index's").found(number);
      is_there[static_cast<std::size_t>(number - begin)] = true;
      numbers.back().push_back(number - begin);
      ++found;
    }
  }
  if (found != count) throw misfit("does not have every number").expected(count).found(found);
  return numbers;
}

/// Computes where the value of each placeholder is in the other names of the rule. Values are in the order of the first
/// segment's placeholders.
MapNames::Rule MapNames::make_rule(const MapRule& rule) const {
  Rule made;
  if (!rule.match.empty()) return made;
  const std::vector<std::string>& names = rule.logical[0].placeholders();
  for (const NameTemplate& segment : rule.logical) {
    made.order.emplace_back();
    for (const std::string& name : segment.placeholders()) made.order.back().push_back(position(names, name));
  }
  for (const std::string& name : names) {
    const Index* const index = find_index(name);
    made.on_axis.push_back(index != nullptr && index->document->axis ? index : nullptr);
  }
  for (const std::string& name : rule.stored.placeholders()) {
    StoredPart part;
    for (const Index& index : indices_) {
      const std::string& base = index.document->name;
      if (name != base + "_local" && name != base + "_chunk") continue;
      part = {name == base + "_local" ? StoredPart::Is::kLocal : StoredPart::Is::kChunk, position(names, base), &index};
    }
    if (part.index == nullptr) part.value = position(names, name);
    made.stored.push_back(part);
  }
  for (const MapStack& stack : rule.stack) made.stack.push_back(position(names, stack.index));
  return made;
}

const MapNames::Index* MapNames::find_index(const std::string& name) const {
  const auto found = std::ranges::find_if(indices_, [&](const Index& each) { return each.document->name == name; });
  return found == indices_.end() ? nullptr : &*found;
}

/// Null if the index does not have this number. \throws Error kInvalidArgument  the document does not define the count
const MapNames::Place* MapNames::place_of(const Index& index, const std::string& value) {
  if (!index.document->count) throw wrong(fmt::format("the map's index '{}' has no count", index.document->name));
  const std::int64_t place = read_number(value).value_or(-1) - index.begin;
  return place >= 0 && place < std::ssize(index.places) ? &index.places[static_cast<std::size_t>(place)] : nullptr;
}

/// {l_local} and {l_chunk} count within a rank's stage. With the rank's coordinate they identify the number {l}.
std::optional<NameValues> MapNames::values_of_stored(const NameMatch& match,
                                                     std::span<const std::int64_t> coordinate) const {
  if (!map_.rule(match.rule).match.empty()) return match.values;
  const Rule& rule = rules_[match.rule];
  NameValues values(rule.on_axis.size());
  std::vector<Place> wanted(values.size());
  for (std::size_t i = 0; i < rule.stored.size(); ++i) {
    const StoredPart& part = rule.stored[i];
    if (part.is == StoredPart::Is::kValue) {
      values[part.value] = match.values[i];
      continue;
    }
    const std::optional<std::int64_t> number = read_number(match.values[i]);
    if (!number) return std::nullopt;
    Place& place = wanted[part.value];
    if (part.index->document->axis) place.coordinate = coordinate[*part.index->document->axis];
    if (part.is == StoredPart::Is::kChunk) place.chunk = *number;
    if (part.is == StoredPart::Is::kLocal) {
      const std::int64_t offset = map_.variables().evaluate(part.index->document->offset);
      if (__builtin_sub_overflow(*number, offset, &place.local)) return std::nullopt;
    }
    // Only checks that the document defines the index's count.
    place_of(*part.index, "0");
    using Numbered = std::pair<Place, std::int64_t>;
    const auto found = std::ranges::lower_bound(part.index->numbers, place, {}, &Numbered::first);
    const bool is_there = found != part.index->numbers.end() && found->first == place;
    values[part.value] = is_there ? std::to_string(part.index->begin + found->second) : "";
  }
  for (const StoredPart& part : rule.stored) {
    if (values[part.value].empty()) return std::nullopt;
  }
  if (!is_at(match.rule, values, coordinate)) return std::nullopt;
  return values;
}

/// Values of stacked indexes become positions in the stacked dimensions. They are not part of the stored name, so they
/// are empty in the result.
std::pair<NameValues, std::vector<std::int64_t>> MapNames::values_of_logical(const NameMatch& match) const {
  if (!map_.rule(match.rule).match.empty()) return {match.values, {}};
  const Rule& rule = rules_[match.rule];
  NameValues values(rule.on_axis.size());
  const std::vector<std::size_t>& order = rule.order[match.segment];
  for (std::size_t i = 0; i < order.size(); ++i) values[order[i]] = match.values[i];
  std::vector<std::int64_t> stack;
  for (const std::size_t stacked : rule.stack) {
    const std::optional<std::int64_t> number = read_number(values[stacked]);
    const std::int64_t begin = begin_of(match.rule, stack.size());
    if (!number || *number < begin || *number - begin >= kMaxCount) {
      throw wrong(fmt::format("{} cannot stack '{}': it is not a number of at most {}", map_.rule(match.rule).where,
                              values[stacked], kMaxCount));
    }
    stack.push_back(*number - begin);
    values[stacked].clear();
  }
  return {std::move(values), std::move(stack)};
}

/// The first number of a rule's stacked index.
std::int64_t MapNames::begin_of(std::size_t rule, std::size_t stacked) const {
  const Index* const index = find_index(map_.rule(rule).stack[stacked].index);
  return index == nullptr ? 0 : index->begin;
}

bool MapNames::is_at(std::size_t rule, const NameValues& values, std::span<const std::int64_t> coordinate) const {
  const std::vector<const Index*>& on_axis = rules_[rule].on_axis;
  for (std::size_t i = 0; i < on_axis.size(); ++i) {
    if (on_axis[i] == nullptr || values[i].empty()) continue;
    const Place* const place = place_of(*on_axis[i], values[i]);
    if (place == nullptr) {
      throw wrong(fmt::format("the map's index '{}' has no number {}", on_axis[i]->document->name, values[i]))
          .because(fmt::format("its count is {}", on_axis[i]->places.size()));
    }
    if (place->coordinate != coordinate[*on_axis[i]->document->axis]) return false;
  }
  return true;
}

std::string MapNames::stored_name(std::size_t rule, const NameValues& values) const {
  const MapRule& document = map_.rule(rule);
  if (!document.match.empty()) return values.front();
  std::vector<std::string> texts;
  for (const StoredPart& part : rules_[rule].stored) {
    if (part.is == StoredPart::Is::kValue) {
      texts.push_back(values[part.value]);
      continue;
    }
    const Place* const place = place_of(*part.index, values[part.value]);
    if (place == nullptr)
      throw wrong(fmt::format("the map's index '{}' has no number {}", part.index->document->name, values[part.value]));
    const bool is_local = part.is == StoredPart::Is::kLocal;
    texts.push_back(std::to_string(is_local ? place->local + map_.variables().evaluate(part.index->document->offset)
                                            : place->chunk));
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return document.stored.fill(views);
}

std::string MapNames::logical_name(std::size_t rule, std::size_t segment, NameValues values,
                                   std::span<const std::int64_t> stack) const {
  const MapRule& document = map_.rule(rule);
  if (!document.match.empty()) return values.front();
  for (std::size_t i = 0; i < stack.size(); ++i) {
    values[rules_[rule].stack[i]] = std::to_string(begin_of(rule, i) + stack[i]);
  }
  std::vector<std::string_view> views;
  for (const std::size_t value : rules_[rule].order[segment]) views.emplace_back(values[value]);
  return document.logical[segment].fill(views);
}

/// A rank's part of a stacked dimension is a run of positions. So its numbers must be consecutive and in order, which a
/// table or virtual stages may violate.
MapNames::StackRange MapNames::stack_at(std::size_t rule, std::span<const std::int64_t> stack,
                                        std::span<const std::int64_t> coordinate) const {
  StackRange range{std::vector<std::int64_t>(stack.size()), {stack.begin(), stack.end()}};
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const Index* const index = rules_[rule].on_axis[rules_[rule].stack[i]];
    if (index == nullptr) continue;
    if (!index->document->count) {
      throw wrong(fmt::format("the map stacks index '{}' over an axis without a count", index->document->name));
    }
    if (map_.variables().evaluate(index->document->chunks) != 1)
      throw wrong(fmt::format("the map stacks index '{}', which has chunks", index->document->name));
    const auto is_here = [&](const Place& place) { return place.coordinate == coordinate[*index->document->axis]; };
    const auto first = std::ranges::find_if(index->places, is_here);
    range.begin[i] = first - index->places.begin();
    range.size[i] = std::ranges::count_if(index->places, is_here);
    for (std::int64_t local = 0; local < range.size[i]; ++local) {
      const std::int64_t number = range.begin[i] + local;
      const Place expected{coordinate[*index->document->axis], 0, local};
      if (number < std::ssize(index->places) && index->places[static_cast<std::size_t>(number)] == expected) continue;
      throw wrong(fmt::format("the map stacks index '{}', whose table does not list consecutive numbers in order",
                              index->document->name));
    }
  }
  return range;
}

std::optional<std::int64_t> MapNames::stated_count(const std::string& index) const {
  const Index* const found = find_index(index);
  return found != nullptr && found->document->count ? std::optional(std::ssize(found->places)) : std::nullopt;
}

std::vector<std::string> RuleUse::check() const {
  // Rules that only drop tensors, or whose conditions are false, may match nothing.
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const MapRule& rule = map_.rule(i);
    if (!used_[i] && !rule.optional && !rule.drops && map_.counts(rule)) unused.push_back(rule.where);
  }
  if (std::ranges::find(used_, true) == used_.end() && unused.empty()) {
    return {"the map changes no tensor, because none of its rules matches one"};
  }
  if (!unused.empty() && map_.document().must_use_rules) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot use the map: {} matches no tensor{}", unused.front(),
                            unused.size() == 1 ? "" : fmt::format("; neither do {} others", unused.size() - 1)))
        .because("the rule is not marked 'optional'")
        .found(unused.front());
  }
  std::vector<std::string> warnings;
  for (const std::string& where : unused) warnings.push_back(where + " of the map matches no tensor");
  return warnings;
}

}  // namespace shard
