#include "libshard/map/documents/document_rules.h"

#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "libshard/core/ascii.h"
#include "libshard/core/box.h"
#include "libshard/core/contains.h"

namespace shard {

namespace {

constexpr std::string_view kSchema = "shardctl.layout/1";

}  // namespace

void check_schema(const JsonPlace& top) {
  if (!top.json().is_object()) throw top.not_a("an object");
  const std::string schema = top.text_of("schema");
  if (schema != kSchema) throw JsonPlace::wrong("wrong schema").expected(kSchema).found(schema);
}

int read_dim(const JsonPlace& place, int least) {
  const JsonPlace::Json& dim = place.json();
  const bool fits =
      dim.is_number_integer() && (dim.is_number_unsigned() ? dim.get<std::uint64_t>() < std::uint64_t{kMaxDims}
                                                           : dim.get<std::int64_t>() >= least);
  if (!fits) throw place.not_a("a dimension").expected(fmt::format("{} to {}", least, kMaxDims - 1)).found(dim.dump());
  return dim.get<int>();
}

CutRule read_split(const JsonPlace& place) {
  return static_cast<CutRule>(place.word({"even", "chunk", "first_extra", "widths"}));
}

MapCut read_cut(const JsonPlace& place, std::size_t axis, CutRule otherwise, int least_dim) {
  MapCut cut{axis, 0, otherwise};
  if (const auto dim = place.find("dim")) cut.dim = read_dim(*dim, least_dim);
  if (const auto split = place.find("split")) cut.split = read_split(*split);
  const auto widths = place.find("widths");
  if (widths) cut.widths = widths->expressions();
  if (widths && cut.widths.empty()) throw widths->not_a("a list of widths, one for each part");
  if ((cut.split == CutRule::kWidths) != widths.has_value()) {
    throw JsonPlace::wrong(place.where() + ": widths and split \"widths\" must be used together");
  }
  return cut;
}

std::unique_ptr<RE2> checked_pattern(const JsonPlace& place, std::unique_ptr<RE2> compiled) {
  if (compiled == nullptr) throw too_large_patterns();
  if (!compiled->ok()) throw place.not_a("a regular expression").found(place.text()).because(compiled->error());
  return compiled;
}

Error too_large_patterns() {
  return JsonPlace::wrong("the patterns of the document are too large")
      .because(fmt::format("together they may compile to at most {} RE2 instructions, and {} bytes each",
                           PatternSets::kMaxPrograms, PatternSizes::kMaxText));
}

namespace {

constexpr std::array kKinds{FlatKind::kZero12, FlatKind::kZero3, FlatKind::kFsdp1, FlatKind::kMcoreBucket};

/// Reads the names of the buffers of one state. An empty `state` is the model. A buffer contains many tensors, so its
/// name can only depend on the group, the bucket and variables.
FlatFamily read_family(const std::string& state, const JsonPlace& place, const MapDocument& document) {
  FlatFamily family{state, read_template(place)};
  for (const std::string& name : family.stored.placeholders()) {
    if (name == "group" || name == "bucket" || document.has_variable(name)) continue;
    throw JsonPlace::wrong(fmt::format("{} has the placeholder '{{{}}}'", place.where(), name))
        .expected("{group}, {bucket} or a variable");
  }
  return family;
}

/// Reads the order of tensors in flat buffers. Empty for both words. All names in one item have the same placeholders,
/// because the whole item is repeated for each value of them.
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
      throw JsonPlace::wrong(item.where() + " lists names with different placeholders").found(name.text());
    }
    if (order.back().empty()) throw item.not_a("a name or a list of names");
  }
  if (order.empty()) throw place.not_a("a word or a list of names");
  return order;
}

/// Reads the patterns of the groups. The text of a pattern's group becomes the name of the group of buffers, so a
/// pattern may have only one.
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

/// Checks the keys against each other. Buffers are sharded over their axis, so the tensors in them must not be. No
/// rule, no `on` and no index may use this axis.
void check_flatten(const JsonPlace& place, const MapFlatten& flatten, const MapDocument& document) {
  if (flatten.families.empty()) throw JsonPlace::wrong(place.where() + " has neither stored nor states");
  for (const FlatFamily& family : flatten.families) {
    const bool has_buckets = contains(family.stored.placeholders(), "bucket");
    if (has_buckets && flatten.kind != FlatKind::kMcoreBucket) {
      throw JsonPlace::wrong(place.where() + ": {bucket} is for the kind mcore_bucket").found(family.stored.text());
    }
  }
  const auto is_same = [&](std::size_t axis) { return axis == flatten.axis; };
  const auto refuse = [&](const std::string& where) {
    throw JsonPlace::wrong(fmt::format("{} shards over the axis '{}', over which flat buffers are sharded", where,
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

/// Reads a list of widths per segment. The list is null for a segment that `shard` divides.
std::vector<std::vector<Expression>> read_widths(const JsonPlace& place, std::size_t segments) {
  std::vector<std::vector<Expression>> all;
  for (const JsonPlace& item : place.items()) {
    all.push_back(item.json().is_null() ? std::vector<Expression>() : item.expressions());
    if (all.back().empty() && !item.json().is_null()) throw item.not_a("null or a list of widths");
  }
  if (all.size() != segments) throw place.not_a(fmt::format("a list of {} lists of widths", segments));
  return all;
}

/// Reads how segments form one tensor. With `interleave` the whole concatenation is sharded, with `per_segment` each
/// segment is sharded before they are concatenated, so a rule has at most one of the two.
MapConcat read_concat(const JsonPlace& place, std::size_t segments) {
  place.check_keys({"dim", "sizes", "interleave", "per_segment", "replicas", "widths"});
  MapConcat concat;
  if (const auto dim = place.find("dim")) concat.dim = read_dim(*dim);
  if (const auto sizes = place.find("sizes")) {
    if (sizes->json().is_string()) {
      sizes->word({"equal"});
      concat.is_equal = true;
    } else {
      concat.sizes = sizes->expressions();
      if (concat.sizes.size() != segments) throw sizes->not_a(fmt::format("a list of {} sizes", segments));
    }
  }
  if (const auto groups = place.find("interleave")) concat.interleave = groups->expression();
  if (const auto per_segment = place.find("per_segment")) concat.per_segment = per_segment->boolean();
  if (const auto replicas = place.find("replicas")) {
    concat.replicas = replicas->expressions();
    if (concat.replicas.size() != segments) throw replicas->not_a(fmt::format("a list of {} numbers", segments));
    if (!concat.per_segment) throw JsonPlace::wrong(replicas->where() + " needs per_segment");
  }
  if (const auto widths = place.find("widths")) concat.widths = read_widths(*widths, segments);
  if (!concat.widths.empty() && !concat.per_segment) {
    throw JsonPlace::wrong(place.where() + ": widths needs per_segment");
  }
  if (concat.per_segment && place.find("interleave")) {
    throw JsonPlace::wrong(place.where() + ": interleave and per_segment contradict each other");
  }
  return concat;
}

MapPad read_pad(const JsonPlace& place) {
  place.check_keys({"dim", "to", "fill", "true"});
  MapPad pad;
  if (const auto dim = place.find("dim")) pad.dim = read_dim(*dim);
  pad.to = place.at("to").expression();
  if (const auto fill = place.find("fill")) {
    const std::size_t word = fill->word({"zero", "last_row", "keep"});
    pad.fill = std::array{MapPad::Fill::kZero, MapPad::Fill::kLastRow, MapPad::Fill::kKeep}[word];
  }
  if (const auto size = place.find("true")) pad.true_size = size->expression();
  return pad;
}

/// Parses "transpose", "rope_half_to_pairs(HEADS)", "rope_pairs_to_half(HEADS)", or one of the latter followed by
/// " then transpose". Null: the segment is unchanged.
MapPermute read_permute(const JsonPlace& place) {
  if (place.json().is_null()) return {};
  const std::string given = place.text();
  if (given == "transpose") return {.transposes = true};
  constexpr std::string_view kThen = " then transpose";
  std::string_view text = given;
  const bool transposes = text.ends_with(kThen);
  if (transposes) text.remove_suffix(kThen.size());
  for (const auto& [name, rotary] : {std::pair{"rope_half_to_pairs(", MapPermute::Rotary::kHalfToPairs},
                                     std::pair{"rope_pairs_to_half(", MapPermute::Rotary::kPairsToHalf}}) {
    if (!text.starts_with(name) || !text.ends_with(")")) continue;
    const std::size_t begin = std::string_view(name).size();
    const JsonPlace::Json heads = text.substr(begin, text.size() - begin - 1);
    return {rotary, JsonPlace(heads, place.where()).expression(), transposes};
  }
  throw JsonPlace::wrong(place.where() + " is not a permutation")
      .expected("transpose, rope_half_to_pairs(HEADS), rope_pairs_to_half(HEADS), or these two then transpose")
      .found(given);
}

MapUnflatten read_unflatten(const JsonPlace& place) {
  place.check_keys({"dim", "size"});
  const auto dim = place.find("dim");
  return {dim ? read_dim(*dim) : 0, place.at("size").expression()};
}

/// Reads the stored name, or a list of it and further names for reading.
void read_stored(const JsonPlace& place, MapRule& rule) {
  for (const JsonPlace& item : place.items_or_self()) rule.others.push_back(read_template(item));
  if (rule.others.empty()) throw place.not_a("a name or a list of names");
  rule.stored = rule.others.front();
  rule.others.erase(rule.others.begin());
  for (const NameTemplate& other : rule.others) {
    if (other.placeholders() == rule.stored.placeholders()) continue;
    throw JsonPlace::wrong(
        fmt::format("{}: '{}' and '{}' have different placeholders", place.where(), rule.stored.text(), other.text()));
  }
}

/// Reads a rule with a pattern of whole names. Such names do not change, so the rule has no other names.
void read_match(const JsonPlace& place, const JsonPlace& match, MapRule& rule, PatternSizes& sizes) {
  for (const char* key : {"logical", "stored", "beside", "alias"}) {
    if (place.find(key)) throw JsonPlace::wrong(fmt::format("{}: match and {} exclude each other", place.where(), key));
  }
  rule.match = match.text();
  read_pattern(match, rule.match, sizes);
  rule.logical.resize(1);
}

void read_names(const JsonPlace& place, MapRule& rule, PatternSizes& sizes) {
  const auto drop = place.find("drop");
  rule.drops = drop && drop->boolean();
  const auto match = place.find("match");
  if (match) return read_match(place, *match, rule, sizes);
  if (rule.drops) throw JsonPlace::wrong(place.where() + ": drop is for rules with match");
  const auto alias = place.find("alias");
  if (alias && place.find("logical")) throw JsonPlace::wrong(place.where() + ": alias and logical exclude each other");
  rule.is_alias = alias.has_value();
  const JsonPlace logical = alias ? *alias : place.at("logical");
  for (const JsonPlace& item : logical.items_or_self()) rule.logical.push_back(read_template(item));
  if (rule.logical.empty()) throw logical.not_a("a name or a list of names");
  if (rule.is_alias && rule.logical.size() > 1) throw alias->not_a("one name");
  read_stored(place.at("stored"), rule);
  if (const auto beside = place.find("beside")) rule.beside = read_template(*beside);
}

std::vector<MapStack> read_stack(const JsonPlace& place) {
  std::vector<MapStack> all;
  for (const JsonPlace& item : place.items()) {
    item.check_keys({"index", "dim"});
    const auto dim = item.find("dim");
    all.push_back({item.at("index").text(), dim ? read_dim(*dim) : 0});
  }
  return all;
}

/// Reads `scale`, `unscale` and `add`.
std::optional<MapArithmetic> read_arithmetic(const JsonPlace& place, const MapRule& rule) {
  const auto scale = place.find("scale"), add = place.find("add"), unscale = place.find("unscale");
  if (unscale && (!scale || add)) throw JsonPlace::wrong(rule.where + ": unscale needs scale, and excludes add");
  if (!scale && !add) return std::nullopt;
  if (rule.is_alias || rule.drops) {
    throw JsonPlace::wrong(rule.where + (rule.drops ? ": scale and add exclude drop"
                                                    : ": an alias has the values of its tensor, so no scale or add"));
  }
  MapArithmetic arithmetic;
  if (scale) arithmetic.scale = scale->real_expression();
  if (add) arithmetic.add = add->real_expression();
  if (unscale) arithmetic.unscale = unscale->real_expression();
  return arithmetic;
}

MapBlock read_block(const JsonPlace& place, const MapRule& rule) {
  place.check_keys({"of", "shape"});
  MapBlock block;
  const JsonPlace of = place.at("of");
  for (const JsonPlace& item : of.items_or_self()) block.of.push_back(read_template(item));
  if (block.of.size() != rule.logical.size()) throw of.not_a(fmt::format("a list of {} names", rule.logical.size()));
  block.shape = place.at("shape").expressions();
  if (!rule.match.empty()) throw JsonPlace::wrong(rule.where + ": block is for rules with stored");
  return block;
}

/// Checks that both sides have the same placeholders. Exceptions are stacked indices, variables, and `{NAME_local}` and
/// `{NAME_chunk}`, which together correspond to `{NAME}`.
void check_placeholders(const MapRule& rule, const MapDocument& document) {
  const auto base_of = [&](std::string name) {
    for (const MapIndex& index : document.index) {
      if (name == index.name + "_local" || name == index.name + "_chunk") return index.name;
    }
    return name;
  };
  std::vector<std::string> stored;
  for (const std::string& name : rule.stored.placeholders()) stored.push_back(base_of(name));
  for (const MapStack& stack : rule.stack) stored.push_back(stack.index);
  const auto check = [&](const std::vector<std::string>& names, const std::vector<std::string>& others) {
    for (const std::string& name : names) {
      if (contains(others, name) || document.has_variable(name)) continue;
      throw JsonPlace::wrong(fmt::format("{}: '{{{}}}' appears on only one side", rule.where, name));
    }
  };
  for (const NameTemplate& segment : rule.logical) {
    check(segment.placeholders(), stored);
    check(stored, segment.placeholders());
    if (rule.beside) check(rule.beside->placeholders(), segment.placeholders());
    const auto number = static_cast<std::size_t>(&segment - rule.logical.data());
    if (rule.block) check(rule.block->of[number].placeholders(), segment.placeholders());
  }
  for (const MapStack& stack : rule.stack) {
    if (!contains(rule.stored.placeholders(), stack.index)) continue;
    throw JsonPlace::wrong(fmt::format("{}: the name of the stacked tensors has '{{{}}}'", rule.where, stack.index));
  }
}

void check_rule(const JsonPlace& place, const MapRule& rule) {
  if (rule.logical.size() > 1 && !rule.concat) throw JsonPlace::wrong(rule.where + " has several names but no concat");
  if (rule.pad && rule.concat && rule.concat->per_segment && rule.pad->dim == rule.concat->dim) {
    throw JsonPlace::wrong(place.where() + ": pad cannot be combined with per_segment along the same dimension");
  }
  if (rule.pad && rule.unflatten && rule.pad->dim == rule.unflatten->dim) {
    throw JsonPlace::wrong(place.where() + ": pad cannot be combined with unflatten along the same dimension");
  }
  if (rule.concat && !rule.concat->widths.empty()) {
    const auto cuts = std::ranges::count(rule.shard, rule.concat->dim, &MapCut::dim);
    if (cuts != 1)
      throw JsonPlace::wrong(rule.where + ": concat.widths needs one entry of shard along the same dimension")
          .found(cuts);
  }
  for (std::size_t i = 1; i < rule.stack.size(); ++i) {
    if (rule.stack[i].dim <= rule.stack[i - 1].dim)
      throw JsonPlace::wrong(rule.where + ": stack must list dimensions in rising order");
  }
}

}  // namespace

std::vector<MapOn> read_on(const JsonPlace& place, const std::vector<MapMeshAxis>& mesh) {
  std::vector<MapOn> all;
  for (const auto& [axis, where] : place.members()) {
    const JsonPlace::Json name = axis;
    MapOn on{read_axis(JsonPlace(name, where.where()), mesh)};
    if (where.json().is_string()) {
      on.coordinates = {where.word({"first", "last"}) == 0 ? 0 : -1};
    } else {
      for (const JsonPlace& item : where.items_or_self()) on.coordinates.push_back(item.integer());
    }
    all.push_back(std::move(on));
  }
  return all;
}

ReduceRule read_reduce(const JsonPlace& place) {
  return place.word({"equal", "first"}) == 0 ? ReduceRule::kEqual : ReduceRule::kFirst;
}

std::unique_ptr<RE2> read_pattern(const JsonPlace& place, std::string_view pattern, PatternSizes& sizes) {
  return checked_pattern(place, sizes.compile(pattern));
}

NameTemplate read_template(const JsonPlace& place) {
  const std::string text = place.text();
  return place.parsed([&] { return NameTemplate(text); });
}

std::vector<MapCondition> read_conditions(const JsonPlace& place, const MapDocument& document) {
  std::vector<MapCondition> all;
  for (const auto& [name, values] : place.members()) {
    if (!document.has_variable(name)) {
      throw JsonPlace::wrong(fmt::format("{} names '{}', which vars lacks", place.where(), name));
    }
    std::vector<std::string> texts;
    for (const JsonPlace& value : values.items_or_self()) {
      texts.push_back(value.json().is_string() ? value.text() : std::to_string(value.integer()));
    }
    all.emplace_back(name, std::move(texts));
  }
  return all;
}

DType read_dtype(const JsonPlace& place) {
  if (const std::optional<DType> dtype = dtype_of_name(lower_case(place.text()))) return *dtype;
  throw JsonPlace::wrong(place.where() + " is not a dtype").expected("such as bfloat16 or BF16").found(place.text());
}

MapRule read_rule(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes) {
  place.check_keys({"id",     "logical", "stored",  "match", "concat",    "shard",  "pad",      "on",
                    "reduce", "stack",   "permute", "block", "alias",     "dtype",  "optional", "when",
                    "beside", "drop",    "scale",   "add",   "unflatten", "unscale"});
  MapRule rule;
  rule.where = place.where();
  if (const auto id = place.find("id")) rule.where = fmt::format("rule '{}'", id->text());
  read_names(place, rule, sizes);
  const std::size_t segments = rule.logical.size();
  if (const auto concat = place.find("concat")) rule.concat = read_concat(*concat, segments);
  if (const auto shard = place.find("shard")) {
    for (const JsonPlace& cut : shard->items()) {
      cut.check_keys({"axis", "dim", "split", "widths"});
      rule.shard.push_back(read_cut(cut, read_axis(cut.at("axis"), document.mesh), CutRule::kEven));
    }
  }
  if (const auto pad = place.find("pad")) rule.pad = read_pad(*pad);
  if (const auto unflatten = place.find("unflatten")) rule.unflatten = read_unflatten(*unflatten);
  if (const auto on = place.find("on")) rule.on = read_on(*on, document.mesh);
  if (const auto stack = place.find("stack")) rule.stack = read_stack(*stack);
  if (const auto block = place.find("block")) rule.block = read_block(*block, rule);
  if (const auto permute = place.find("permute")) {
    for (const JsonPlace& item : permute->items_or_self()) rule.permute.push_back(read_permute(item));
    if (rule.permute.size() != 1 && rule.permute.size() != segments)
      throw permute->not_a("one permutation per segment");
  }
  // A single permutation applies to every segment.
  rule.permute.resize(segments, rule.permute.size() == 1 ? rule.permute.front() : MapPermute());
  rule.arithmetic = read_arithmetic(place, rule);
  if (const auto reduce = place.find("reduce")) rule.reduce = read_reduce(*reduce);
  if (const auto dtype = place.find("dtype")) rule.dtype = read_dtype(*dtype);
  const auto optional = place.find("optional");
  rule.optional = optional ? optional->boolean() : false;
  if (const auto when = place.find("when")) rule.when = read_conditions(*when, document);
  check_rule(place, rule);
  if (rule.match.empty()) check_placeholders(rule, document);
  return rule;
}

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
