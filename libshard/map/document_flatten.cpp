#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/map/document_rules.h"

namespace shard {

namespace {

constexpr std::array kKinds{FlatKind::kZero12, FlatKind::kZero3, FlatKind::kFsdp1, FlatKind::kMcoreBucket};

bool is_in(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

FlatFamily read_family(const std::string& state, const JsonPlace& place, const MapDocument& document) {
  FlatFamily family{state, read_template(place)};
  for (const std::string& name : family.stored.placeholders()) {
    const bool is_variable = std::ranges::find(document.vars, name, &MapVariable::name) != document.vars.end();
    if (name == "group" || name == "bucket" || is_variable) continue;
    throw JsonPlace::wrong(fmt::format("{} has the placeholder '{{{}}}'", place.where(), name))
        .expected("{group}, {bucket} or a variable");
  }
  return family;
}

std::vector<std::vector<NameTemplate>> read_order(const JsonPlace& place) {
  if (place.json().is_string()) {
    place.word({"stored", "param_shapes"});
    return {};
  }
  std::vector<std::vector<NameTemplate>> order;
  for (const JsonPlace& item : place.items()) {
    order.emplace_back();
    for (const JsonPlace& name : item.items_or_self()) {
      order.back().push_back(read_template(name));
      if (order.back().back().placeholders() == order.back().front().placeholders()) continue;
      throw JsonPlace::wrong(item.where() + " lists names with other placeholders").found(name.text());
    }
    if (order.back().empty()) throw item.not_a("a name or a list of names");
  }
  if (order.empty()) throw place.not_a("a word or a list of names");
  return order;
}

std::vector<std::string> read_groups(const JsonPlace& place, PatternSizes& sizes) {
  std::vector<std::string> groups;
  for (const JsonPlace& item : place.items()) {
    if (read_pattern(item, item.text(), sizes)->NumberOfCapturingGroups() > 1)
      throw item.not_a("a pattern with one group at most");
    groups.push_back(item.text());
  }
  if (groups.empty()) throw place.not_a("a list of patterns");
  return groups;
}

void read_buckets(const JsonPlace& place, MapFlatten& flatten) {
  if (flatten.kind != FlatKind::kMcoreBucket) throw JsonPlace::wrong(place.where() + " is for the kind mcore_bucket");
  if (!place.json().is_array()) {
    flatten.bucket_size = place.expression();
    return;
  }
  for (const JsonPlace& item : place.items()) flatten.bucket_ends.push_back(item.text());
  if (flatten.bucket_ends.empty()) throw place.not_a("a size or a list of names");
}

void read_shapes(const JsonPlace& place, MapFlatten& flatten) {
  for (const auto& [name, shape] : place.members()) {
    const JsonPlace::Json key = name;
    flatten.shapes.emplace_back(read_template(JsonPlace(key, shape.where())), shape.expressions());
  }
}

void check_flatten(const JsonPlace& place, const MapFlatten& flatten, const MapDocument& document) {
  if (flatten.families.empty()) throw JsonPlace::wrong(place.where() + " has neither stored nor states");
  for (const FlatFamily& family : flatten.families) {
    const bool has_buckets = is_in(family.stored.placeholders(), "bucket");
    if (has_buckets && flatten.kind != FlatKind::kMcoreBucket) {
      throw JsonPlace::wrong(place.where() + ": {bucket} is for the kind mcore_bucket").found(family.stored.text());
    }
  }
  const auto is_same = [&](std::size_t axis) { return axis == flatten.axis; };
  const auto refuse = [&](const std::string& where) {
    throw JsonPlace::wrong(fmt::format("{} cuts over the axis '{}', over which flat buffers are cut", where,
                                       document.mesh[flatten.axis].name));
  };
  for (const MapRule& rule : document.rules) {
    if (std::ranges::any_of(rule.shard, is_same, &MapCut::axis)) refuse(rule.where);
    if (std::ranges::any_of(rule.on, is_same, &MapOn::axis)) refuse(rule.where);
  }
  for (const MapIndex& index : document.index) {
    if (index.axis && is_same(*index.axis)) refuse(fmt::format("index '{}'", index.name));
  }
}

}  // namespace

MapFlatten read_flatten(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes) {
  place.check_keys({"axis", "kind", "stored", "states", "order", "groups", "buckets", "align", "fill", "shapes"});
  MapFlatten flatten;
  flatten.axis = read_axis(place.at("axis"), document.mesh);
  flatten.kind = kKinds[place.at("kind").word({"zero12", "zero3", "fsdp1", "mcore_bucket"})];
  if (const auto stored = place.find("stored")) flatten.families.push_back(read_family("", *stored, document));
  if (const auto states = place.find("states")) {
    for (const auto& [state, name] : states->members()) {
      flatten.families.push_back(read_family(state, name, document));
    }
  }
  if (const auto order = place.find("order")) {
    flatten.order = read_order(*order);
    flatten.takes_param_shapes = order->json() == "param_shapes";
  }
  if (const auto groups = place.find("groups")) {
    if (flatten.takes_param_shapes) throw JsonPlace::wrong(groups->where() + ": param_shapes states the groups");
    flatten.groups = read_groups(*groups, sizes);
  }
  if (const auto buckets = place.find("buckets")) read_buckets(*buckets, flatten);
  if (const auto align = place.find("align")) {
    if (flatten.kind != FlatKind::kFsdp1) throw JsonPlace::wrong(align->where() + " is for the kind fsdp1");
    flatten.align = align->expression();
  }
  if (const auto fill = place.find("fill")) flatten.checks_padding = fill->word({"zero", "keep"}) == 0;
  if (const auto shapes = place.find("shapes")) read_shapes(*shapes, flatten);
  check_flatten(place, flatten, document);
  return flatten;
}

}  // namespace shard
