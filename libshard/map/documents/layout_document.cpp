#include "libshard/map/documents/layout_document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/ascii.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"
#include "libshard/core/utf8.h"
#include "libshard/map/documents/document_rules.h"
#include "libshard/map/documents/document_text.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

namespace {

constexpr std::size_t kMaxShownPattern = 256;    ///< The limit in messages.
constexpr std::size_t kMaxPlacements = 1 << 20;  ///< For all rules together. Each has a placement for every axis.

void check_layout_keys(const JsonPlace& place, std::initializer_list<std::string_view> known) {
  const std::optional<std::string> key = place.other_key(known);
  if (!key) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("layout document: key '{}' of {} is not supported", *key, place.where()))
      .expected(fmt::format("{}", fmt::join(known, ", ")))
      .found(*key)
      .hint("use a model map, which can express more than a layout (docs/maps.md)");
}

/// Reads an integer from 1 to `most`, if the value is one.
std::optional<std::int64_t> size_of(const JsonPlace& place, std::int64_t most) {
  const JsonPlace::Json& json = place.json();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() < 1) return std::nullopt;
  if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) return std::nullopt;
  return json.get<std::int64_t>();
}

std::vector<MeshAxis> read_mesh(const JsonPlace& place) {
  if (!place.json().is_object() || place.json().empty()) throw place.not_a("an object of axes and sizes");
  std::vector<MeshAxis> read;
  std::int64_t ranks = 1;
  for (const auto& [name, where] : place.members()) {
    const std::optional<std::int64_t> size = size_of(where, kMaxRanks / ranks);
    if (!size) {
      throw where.not_a("a size")
          .expected(fmt::format("an integer of at least 1, and at most {} ranks in all", kMaxRanks))
          .found(where.json().dump());
    }
    ranks *= *size;
    read.push_back({name, *size});
  }
  return read;
}

/// Converts widths to ends. Widths may contain the names of the mesh's axes, which mean their sizes.
std::vector<std::int64_t> read_ends(const JsonPlace& place, std::span<const Expression> widths,
                                    const std::vector<MeshAxis>& mesh, std::int64_t parts) {
  const auto size_of_axis = [&](std::string_view name) {
    const auto axis = std::ranges::find(mesh, name, &MeshAxis::name);
    if (axis != mesh.end()) return axis->size;
    throw JsonPlace::wrong(fmt::format("{} names '{}', which is not an axis of mesh", place.where(), name)).found(name);
  };
  if (std::ssize(widths) != parts) {
    throw JsonPlace::wrong(place.where() + " is not a list of one width for each part")
        .expected(parts)
        .found(std::ssize(widths));
  }
  std::vector<std::int64_t> numbers;
  for (const Expression& width : widths) numbers.push_back(width.evaluate(size_of_axis));
  return ends_of(numbers, place.where());
}

Placement read_placement(const JsonPlace& place, const MapCut& cut, const std::vector<MeshAxis>& mesh) {
  Placement placement{Placement::kShard, cut.dim, 1, cut.split};
  if (cut.split == CutRule::kWidths) {
    placement.ends = read_ends(place.at("widths"), cut.widths, mesh, mesh[cut.axis].size);
  }
  const auto factor = place.find("split_factor");
  if (!factor) return placement;
  if (place.find("split")) {
    throw JsonPlace::wrong(place.where() + ": split and split_factor contradict each other");
  }
  const std::optional<std::int64_t> size = size_of(*factor, kMaxRanks);
  if (!size) throw factor->not_a("a size").found(factor->json().dump());
  placement.kind = Placement::kStridedShard;
  placement.split_factor = *size;
  return placement;
}

/// Reads the axes in the order of sharding: those of `shard` first, then the others, which have replicas.
void read_shard(const JsonPlace& place, const std::vector<MeshAxis>& mesh, MeshLayout::Rule& rule) {
  for (const JsonPlace& entry : place.items()) {
    check_layout_keys(entry, {"axis", "dim", "split", "widths", "split_factor"});
    const std::size_t axis = read_axis(entry.at("axis"), mesh);
    entry.at("dim");
    const MapCut cut = read_cut(entry, axis, CutRule::kChunk, -kMaxDims);
    if (std::ranges::find(rule.order, axis) != rule.order.end()) {
      throw JsonPlace::wrong(fmt::format("{} names the axis '{}' a second time", entry.where(), mesh[axis].name));
    }
    rule.order.push_back(axis);
    rule.placements[axis] = read_placement(entry, cut, mesh);
  }
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (std::ranges::find(rule.order, axis) == rule.order.end()) rule.order.push_back(axis);
  }
}

/// The names in a pattern that only lists names, or nothing if it is a real pattern.
std::optional<std::vector<std::string>> listed_names(std::string_view pattern) {
  std::vector<std::string> names(1);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '|') {
      names.emplace_back();
    } else if (pattern.substr(i).starts_with("\\x00")) {
      names.back() += '\0';
      i += 3;
    } else if (c == '\\') {
      const char escaped = ++i < pattern.size() ? pattern[i] : 'a';
      const bool is_word = std::isalnum(static_cast<unsigned char>(escaped)) != 0 || escaped == '_';
      if (is_word || static_cast<unsigned char>(escaped) >= 0x80) return std::nullopt;
      names.back() += escaped;
    } else if (std::string_view(".*+?()[]{}^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      names.back() += c;
    }
  }
  return names;
}

/// Matches names against the rules of a document: lists of names by binary search, and patterns in sets, so that one
/// pass over a name matches many patterns.
class DocumentMatcher {
 public:
  /// \param rules  number of rules that will be added.
  explicit DocumentMatcher(std::size_t rules) { names_.reserve(rules); }

  /// Adds a rule. Rules must be added in their order.
  void add(std::size_t rule, const std::string& match, const JsonPlace& place) {
    if (const std::optional<std::vector<std::string>> names = listed_names(match)) {
      for (const std::string& name : *names) names_.emplace_back(name, rule);
      return;
    }
    checked_pattern(place, patterns_.add(rule, match));
  }

  void finish() {
    sort_unique(names_);
    if (!patterns_.compile()) throw too_large_patterns();
  }

  std::vector<std::size_t> operator()(std::string_view name) const {
    std::vector<std::size_t> rules;
    for (const auto& [listed, rule] : std::ranges::equal_range(names_, name, {}, &Listed::first)) rules.push_back(rule);
    const auto match = [&] { return name.size() > MatchTime::kLongestName || patterns_.append_matching(name, rules); };
    if (!time_(name, match)) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot match '{}' against the layout's patterns", name));
    }
    sort_unique(rules);
    return rules;
  }

 private:
  using Listed = std::pair<std::string, std::size_t>;
  std::vector<Listed> names_;  ///< Sorted.
  PatternSets patterns_{RE2::ANCHOR_BOTH};
  MatchTime time_;
};

/// Reads the rule with this number of the document `file`, and adds its pattern to the matcher.
MeshLayout::Rule read_layout_rule(const JsonPlace& place, const std::vector<MeshAxis>& mesh, std::size_t number,
                                  const std::string& file, DocumentMatcher& matcher) {
  check_layout_keys(place, {"id", "match", "shard"});
  place.text_of("id");
  const JsonPlace match = place.at("match");
  MeshLayout::Rule rule;
  const std::string pattern = match.text();
  rule.source = fmt::format("{}: rules[{}].match {}", file, number, clipped(pattern, kMaxShownPattern));
  rule.placements.resize(mesh.size());
  if (const auto shard = place.find("shard")) read_shard(*shard, mesh, rule);
  matcher.add(number, pattern, match);
  return rule;
}

/// Appends an RE2 pattern that matches exactly this name.
void append_quoted(std::string& pattern, std::string_view name) {
  for (const char c : name) {
    if (c == '\0') {
      pattern += "\\x00";
    } else if (is_letter(c) || is_digit(c) || c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      pattern += c;
    } else {
      pattern += {'\\', c};
    }
  }
}

std::string_view valid_utf8(std::string_view text) {
  if (is_utf8(text)) return text;
  throw Error(ErrorCode::kUnsupported, "cannot name a tensor in a layout document: its name is not valid UTF-8")
      .of_tensor(text)
      .suggest(Remedy::kRename, text);
}

/// The items of the list `shard`, slowest axis first, without the axes of replicas.
std::string shard_text(std::span<const MeshAxis> mesh, std::span<const Placement> placements) {
  std::string text;
  JsonWriter json(text, kPythonJson);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (placement.kind == Placement::kReplicate) continue;
    json.begin_object();
    json.key("axis"), json.string(valid_utf8(mesh[axis].name));
    json.key("dim"), json.number(placement.dim);
    if (placement.kind == Placement::kStridedShard) json.key("split_factor"), json.number(placement.split_factor);
    if (placement.split != CutRule::kChunk) json.key("split"), json.string(to_string(placement.split));
    if (!placement.ends.empty()) json.key("widths"), json.numbers(widths_of(placement));
    json.end_object();
  }
  return text;
}

}  // namespace

MeshLayout parse_layout_document(std::string_view text, const std::string& file) try {
  const JsonPlace::Json document = parse_document_text(text, kMaxLayoutValues);
  const JsonPlace top(document, "the document");
  check_schema(top);
  check_layout_keys(top, {"schema", "name", "mesh", "files", "rules"});
  top.text_of("name");
  MeshLayout layout;
  layout.mesh = read_mesh(top.at("mesh"));
  if (const auto files = top.find("files")) {
    check_layout_keys(*files, {"path"});
    layout.file_path = files->text_of("path");
  }
  const auto rules = top.find("rules");
  if (!rules) return layout;
  if (rules->json().size() > kMaxPlacements / layout.mesh.size()) {
    throw JsonPlace::wrong("its rules are too many for its axes")
        .expected(fmt::format("at most {} rules times axes", kMaxPlacements))
        .found(fmt::format("{} rules, {} axes", rules->json().size(), layout.mesh.size()));
  }
  const auto matcher = std::make_shared<DocumentMatcher>(rules->json().size());
  layout.rules.reserve(rules->json().size());
  for (const JsonPlace& rule : rules->items()) {
    layout.rules.push_back(read_layout_rule(rule, layout.mesh, layout.rules.size(), file, *matcher));
  }
  matcher->finish();
  layout.matching = [matcher](std::string_view name) { return (*matcher)(name); };
  return layout;
} catch (Error& error) {
  throw error.in_file(file);
}

std::string dump_layout_document(const std::string& file_path, std::span<const MeshAxis> mesh,
                                 std::span<const PlacedName> names) {
  // Tensors with equal shardings share one rule, so the document has one rule per kind of sharding.
  std::map<std::string, std::string> pattern_of;  // By the text of `shard`.
  for (const PlacedName& each : names) {
    const std::string shard = shard_text(mesh, each.placements);
    if (shard.empty()) continue;
    const auto [entry, is_new] = pattern_of.try_emplace(shard);
    if (!is_new) entry->second += '|';
    append_quoted(entry->second, each.name);
  }
  std::string text;
  JsonWriter json(text, kPythonJson);
  json.begin_object();
  json.line(2);
  json.key("schema"), json.string("shardctl.layout/1");
  json.line(2);
  json.key("mesh"), json.begin_object();
  for (const MeshAxis& axis : mesh) json.member_name(valid_utf8(axis.name)), json.number(axis.size);
  json.end_object();
  json.line(2);
  json.key("files"), json.begin_object();
  json.key("path"), json.string(valid_utf8(file_path));
  json.end_object();
  json.line(2);
  json.key("rules"), json.begin_array();
  for (const auto& [shard, pattern] : pattern_of) {
    json.line(4);
    json.begin_object();
    json.key("match"), json.string(valid_utf8(pattern));
    json.key("shard"), json.begin_array(), json.literal(shard), json.end_array();
    json.end_object();
  }
  if (!pattern_of.empty()) json.end_line(2);
  json.end_array();
  json.end_line();
  json.end_object();
  json.end_line();
  return text;
}

}  // namespace shard
