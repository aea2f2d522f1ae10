#include "libshard/map/documents/document.h"

#include <fmt/ranges.h>

#include "libshard/core/contains.h"
#include "libshard/core/split.h"
#include "libshard/map/documents/document_rules.h"
#include "libshard/map/documents/document_text.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

namespace {

/// `from` names a value in config.json, in the checkpoint's own arguments or in its names.
std::string read_from(const JsonPlace& place, PatternSizes& sizes) {
  std::string from = place.text();
  if (from.starts_with("config.json#/") || from.starts_with("args.")) return from;
  for (const std::string_view names : {"stored#", "logical#"}) {
    if (!from.starts_with(names)) continue;
    const auto pattern = read_pattern(place, std::string_view(from).substr(names.size()), sizes);
    if (pattern->NumberOfCapturingGroups() > 1) throw place.not_a("a pattern with one group at most");
    return from;
  }
  throw JsonPlace::wrong(place.where() + " does not define where the number comes from")
      .expected("config.json#/POINTER, args.NAME, stored#PATTERN, logical#PATTERN")
      .found(from);
}

/// Reads a variable. A number is short for an object with this `value`.
MapVariable read_variable(const std::string& name, const JsonPlace& place, PatternSizes& sizes) {
  MapVariable variable{name};
  if (!place.json().is_object()) {
    variable.values.emplace_back(place.integer());
    return variable;
  }
  place.check_keys({"from", "value", "word"});
  if (const auto from = place.find("from")) {
    for (const JsonPlace& item : from->items_or_self()) variable.from.push_back(read_from(item, sizes));
  }
  if (const auto value = place.find("value")) {
    for (const JsonPlace& item : value->items_or_self()) variable.values.push_back(item.expression());
  }
  if (const auto word = place.find("word")) variable.word = word->text();
  return variable;
}

/// Reads the pattern of a placeholder's texts. A group in it would shift the numbers of the placeholders' groups.
std::string read_type(const JsonPlace& place, PatternSizes& sizes) {
  std::string text = place.text();
  if (read_pattern(place, text, sizes)->NumberOfCapturingGroups() == 0) return text;
  throw JsonPlace::wrong(place.where() + " has a group; write (?:...)").found(text);
}

/// Reads the distribution of an index. Expressions are evaluated later, when the variables are known.
MapIndex read_index(const std::string& name, const JsonPlace& place, const MapDocument& document) {
  place.check_keys({"begin", "count", "axis", "split", "counts", "table", "chunks", "offset", "stacked"});
  MapIndex index{name};
  if (const auto begin = place.find("begin")) index.begin = begin->expression();
  if (const auto count = place.find("count")) index.count = count->expression();
  if (const auto axis = place.find("axis")) index.axis = read_axis(*axis, document.mesh);
  if (const auto split = place.find("split")) index.split = read_split(*split);
  if (const auto counts = place.find("counts")) index.counts = counts->expressions();
  if (const auto table = place.find("table")) {
    for (const JsonPlace& part : table->items()) index.table.push_back(part.expressions());
    if (place.find("split") || place.find("counts") || !index.count) {
      throw JsonPlace::wrong(table->where() + " needs count, and excludes split and counts");
    }
  }
  if (const auto chunks = place.find("chunks")) index.chunks = chunks->expression();
  if (const auto offset = place.find("offset")) index.offset = offset->expression();
  if (const auto stacked = place.find("stacked")) index.stacked = read_conditions(*stacked, document);
  if (index.begin && !index.count) throw JsonPlace::wrong(place.where() + " has begin without count");
  return index;
}

/// Parses a name with the one placeholder {key}, the name of the tensor to which a state belongs.
NameTemplate read_key_template(const JsonPlace& place, const std::string& text) {
  NameTemplate names = place.parsed([&] { return NameTemplate(text); });
  if (names.placeholders() == std::vector<std::string>{"key"}) return names;
  throw JsonPlace::wrong(place.where() + " is not a name with the placeholder {key}").found(text);
}

MapState read_state(const JsonPlace& place) {
  place.check_keys({"name", "key", "dtype", "as"});
  MapState state{place.at("name").text(), {}, {}, {}};
  const JsonPlace key = place.at("key");
  state.stored = read_key_template(key, key.text());
  state.logical = read_key_template(place, fmt::format("optimizer.state.{{key}}.{}", state.name));
  if (const auto dtype = place.find("dtype")) state.dtype = read_dtype(*dtype);
  if (const auto as = place.find("as")) {
    state.values = static_cast<MapValues>(as->word({"weights", "gradients", "squared_gradients"}));
  }
  return state;
}

MapRefusal read_refusal(const JsonPlace& place, const MapDocument& document) {
  place.check_keys({"when", "because"});
  return {read_conditions(place.at("when"), document), place.at("because").text()};
}

/// Checks that each state, and the layout of tensors, fit rules that compute values.
void check_arithmetic(const MapDocument& document) {
  const auto rule =
      std::ranges::find_if(document.rules, [](const MapRule& each) { return each.arithmetic.has_value(); });
  if (rule == document.rules.end()) return;
  if (document.flatten) {
    throw JsonPlace::wrong(rule->where + ": scale and add cannot be combined with flatten");
  }
  const auto state = std::ranges::find_if(document.states, [](const MapState& each) { return !each.values; });
  if (state == document.states.end()) return;
  throw JsonPlace::wrong(fmt::format("the state '{}' needs the key 'as'", state->name))
      .because(rule->where + " has scale or add, and optimizer states do not all change like weights")
      .expected("weights, gradients, squared_gradients");
}

/// Reads the defaults of the whole document. `replica` replaces the rules' own `reduce`, so this is called after the
/// rules were read.
void read_strict(const JsonPlace& place, MapDocument& document) {
  place.check_keys({"unmatched", "unused_rule", "replica"});
  if (const auto unmatched = place.find("unmatched"))
    document.copies_unmatched = unmatched->word({"error", "copy"}) == 1;
  if (const auto unused = place.find("unused_rule")) document.must_use_rules = unused->word({"error", "warn"}) == 0;
  const auto replica = place.find("replica");
  if (!replica || read_reduce(*replica) == ReduceRule::kEqual) return;
  for (MapRule& rule : document.rules) rule.reduce = ReduceRule::kFirst;
}

/// Reads a list of keys, or a text with '.' between them.
std::vector<std::string> read_root(const JsonPlace& place) {
  std::vector<std::string> keys;
  if (place.json().is_array()) {
    for (const JsonPlace& item : place.items()) keys.push_back(item.text());
    return keys;
  }
  const std::string text = place.text();
  for (const std::string_view part : split(text, '.')) keys.emplace_back(part);
  return keys;
}

MapContainer read_container(const JsonPlace& place) {
  const bool is_torch = place.word({"torch_zip", "pth", "safetensors"}) < 2;
  return is_torch ? MapContainer::kTorch : MapContainer::kSafetensors;
}

MapFiles read_files(const JsonPlace& place, const MapDocument& document) {
  place.check_keys({"path", "container", "root", "writer", "states"});
  MapFiles files{place.at("path").text()};
  if (const auto container = place.find("container")) files.container = read_container(*container);
  if (!document.files.empty() && document.files.front().container != files.container) {
    throw JsonPlace::wrong(place.where() + ".container is not that of the entries before it");
  }
  if (const auto root = place.find("root")) files.root = read_root(*root);
  if (!files.root.empty() && files.container == MapContainer::kSafetensors) {
    throw JsonPlace::wrong(place.where() +
                           ".root is only for torch.save files, because safetensors files have no keys");
  }
  if (const auto writer = place.find("writer")) files.writer = read_on(*writer, document.mesh);
  if (const auto states = place.find("states")) {
    for (const JsonPlace& state : states->items()) files.states.push_back(state.text());
  }
  return files;
}

/// Checks that no variable has a name with a different meaning in expressions or names of tensors.
void check_variables(const MapDocument& document) {
  for (const MapVariable& variable : document.vars) {
    const char* const other = contains(document.mesh, variable.name, &MapMeshAxis::name) ? "an axis of mesh"
                              : contains(document.index, variable.name, &MapIndex::name) ? "an index"
                              : variable.name == "ranks"                                 ? "the number of ranks"
                                                                                         : nullptr;
    if (other == nullptr) continue;
    throw JsonPlace::wrong(fmt::format("the document.vars.{} has the name of {}", variable.name, other));
  }
}

void check_count(const JsonPlace& list, std::size_t most) {
  if (list.json().size() <= most) return;
  throw JsonPlace::wrong(list.where() + " is too long")
      .expected(fmt::format("at most {}", most))
      .found(list.json().size());
}

}  // namespace

bool MapDocument::has_variable(std::string_view variable) const { return contains(vars, variable, &MapVariable::name); }

MapDocument parse_map_document(std::string_view text, const std::string& file) try {
  // Keys are read in the order of their dependencies: rules need the variables, the mesh and the indexes, and flat
  // buffers need the rules.
  const JsonPlace::Json json = parse_document_text(text, kMaxMapValues);
  const JsonPlace top(json, "the document");
  check_schema(top);
  top.check_keys({"schema", "name", "description", "vars", "mesh", "files", "index", "types", "rules", "states",
                  "refuse", "flatten", "strict"});
  MapDocument document;
  PatternSizes sizes;
  document.name = top.text_of("name");
  top.text_of("description");
  if (const auto vars = top.find("vars")) {
    for (const auto& [name, place] : vars->members()) document.vars.push_back(read_variable(name, place, sizes));
  }
  if (const auto mesh = top.find("mesh")) {
    for (const auto& [name, place] : mesh->members()) document.mesh.push_back({name, place.expression()});
  }
  if (const auto files = top.find("files")) {
    for (const JsonPlace& place : files->items_or_self()) document.files.push_back(read_files(place, document));
    if (document.mesh.empty()) throw JsonPlace::wrong(files->where() + " needs a mesh");
  }
  if (const auto types = top.find("types")) {
    for (const auto& [name, place] : types->members()) document.types.emplace_back(name, read_type(place, sizes));
  }
  if (const auto index = top.find("index")) {
    for (const auto& [name, place] : index->members()) document.index.push_back(read_index(name, place, document));
  }
  check_variables(document);
  const JsonPlace rules = top.at("rules");
  check_count(rules, kMaxResolvedRules);
  for (const JsonPlace& place : rules.items()) document.rules.push_back(read_rule(place, document, sizes));
  if (const auto flatten = top.find("flatten")) document.flatten = read_flatten(*flatten, document, sizes);
  if (const auto states = top.find("states")) {
    check_count(*states, kMaxStates);
    for (const JsonPlace& place : states->items()) document.states.push_back(read_state(place));
  }
  check_arithmetic(document);
  if (const auto refuse = top.find("refuse")) {
    for (const JsonPlace& place : refuse->items()) document.refusals.push_back(read_refusal(place, document));
  }
  if (const auto strict = top.find("strict")) read_strict(*strict, document);
  return document;
} catch (Error& error) {
  throw error.in_file(file);
}

}  // namespace shard
