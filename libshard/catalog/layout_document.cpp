#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "libshard/catalog/document_text.h"
#include "libshard/catalog/json_place.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/pattern_sets.h"
#include "libshard/catalog/read_split.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxPlacements = 1 << 21;  ///< The limit for all rules, because each rule has a placement for
                                                 ///< every axis.

void check_keys(const JsonPlace& place, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : place.members()) {
    if (std::ranges::find(known, std::string_view(key)) != known.end()) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layout document: key '{}' of {} is not supported", key, place.where()))
        .expected(fmt::format("{}", fmt::join(known, ", ")))
        .found(key)
        .hint("use a model map, which can express more than a layout (docs/maps.md)");
  }
}

std::string text_at(const JsonPlace& place, const char* key) {
  const auto found = place.find(key);
  return found ? found->text() : std::string();
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

std::size_t read_axis(const JsonPlace& place, const std::vector<MeshAxis>& mesh) {
  const std::string name = place.text();
  const auto axis = std::ranges::find(mesh, name, &MeshAxis::name);
  if (axis != mesh.end()) return static_cast<std::size_t>(axis - mesh.begin());
  throw JsonPlace::wrong(fmt::format("{} names the axis '{}', which mesh lacks", place.where(), name)).found(name);
}

int read_dim(const JsonPlace& place) {
  const JsonPlace::Json& dim = place.json();
  const bool fits =
      dim.is_number_integer() && (dim.is_number_unsigned() ? dim.get<std::uint64_t>() < std::uint64_t{kMaxDims}
                                                           : dim.get<std::int64_t>() >= -kMaxDims);
  if (!fits) throw place.not_a("a dimension").expected("-64 to 63").found(dim.dump());
  return dim.get<int>();
}

/// Converts widths to ends. Widths may contain the names of the mesh's axes, which stand for their sizes.
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

void read_split_into(const JsonPlace& cut, const std::vector<MeshAxis>& mesh, std::int64_t parts,
                     Placement& placement) {
  const SplitWords words = read_split_words(cut, CutRule::kChunk);
  placement.split = words.split;
  if (words.split == CutRule::kWidths) placement.ends = read_ends(cut.at("widths"), words.widths, mesh, parts);
  const auto factor = cut.find("split_factor");
  if (!factor) return;
  if (cut.find("split")) {
    throw JsonPlace::wrong(cut.where() + ": split and split_factor contradict each other");
  }
  const std::optional<std::int64_t> size = size_of(*factor, kMaxRanks);
  if (!size) throw factor->not_a("a size").found(factor->json().dump());
  placement.kind = Placement::kStridedShard;
  placement.split_factor = *size;
}

/// Reads the axes in the order of cutting: those of `shard` first, then the others, which hold replicas.
void read_shard(const JsonPlace& place, const std::vector<MeshAxis>& mesh, MeshLayout::Rule& rule) {
  for (const JsonPlace& cut : place.items()) {
    check_keys(cut, {"axis", "dim", "split", "widths", "split_factor"});
    const std::size_t axis = read_axis(cut.at("axis"), mesh);
    if (std::ranges::find(rule.order, axis) != rule.order.end()) {
      throw JsonPlace::wrong(fmt::format("{} names the axis '{}' a second time", cut.where(), mesh[axis].name));
    }
    rule.order.push_back(axis);
    Placement& placement = rule.placements[axis];
    placement = {Placement::kShard, read_dim(cut.at("dim")), 1};
    read_split_into(cut, mesh, mesh[axis].size, placement);
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
  /// Adds a rule. Rules must be added in their order.
  void add(std::size_t rule, const std::string& match, const JsonPlace& place) {
    if (const std::optional<std::vector<std::string>> names = listed_names(match)) {
      for (const std::string& name : *names) names_.emplace_back(name, rule);
      return;
    }
    const std::unique_ptr<RE2> pattern = patterns_.add(rule, match);
    if (pattern == nullptr) throw too_large();
    if (!pattern->ok()) throw place.not_a("a regular expression").found(match).because(pattern->error());
  }

  void finish() {
    std::ranges::sort(names_);
    names_.erase(std::ranges::unique(names_).begin(), names_.end());
    if (!patterns_.compile()) throw too_large();
  }

  std::vector<std::size_t> operator()(std::string_view name) const {
    std::vector<std::size_t> rules;
    for (const auto& [listed, rule] : std::ranges::equal_range(names_, name, {}, &Listed::first)) rules.push_back(rule);
    const auto match = [&] { return name.size() > MatchTime::kLongestName || patterns_.append_matching(name, rules); };
    if (!time_(name, match)) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot match '{}' against the layout's patterns", name));
    }
    std::ranges::sort(rules);
    rules.erase(std::ranges::unique(rules).begin(), rules.end());
    return rules;
  }

 private:
  using Listed = std::pair<std::string, std::size_t>;
  static Error too_large() {
    return JsonPlace::wrong("the patterns of the rules are too large")
        .because(fmt::format("together they may compile to at most {} RE2 instructions, and {} bytes each",
                             PatternSets::kMaxPrograms, PatternSizes::kMaxText));
  }

  std::vector<Listed> names_;  ///< Sorted.
  PatternSets patterns_{RE2::ANCHOR_BOTH};
  MatchTime time_;
};

MeshLayout::Rule read_rule(const JsonPlace& place, const std::vector<MeshAxis>& mesh, std::size_t number,
                           DocumentMatcher& matcher) {
  check_keys(place, {"id", "match", "shard"});
  text_at(place, "id");
  const JsonPlace match = place.at("match");
  MeshLayout::Rule rule;
  rule.source = match.text();
  rule.placements.resize(mesh.size());
  if (const auto shard = place.find("shard")) read_shard(*shard, mesh, rule);
  matcher.add(number, rule.source, match);
  return rule;
}

}  // namespace

MeshLayout parse_layout_document(std::string_view text, const std::string& file) try {
  const JsonPlace::Json document = parse_document_text(text, kMaxLayoutValues);
  const JsonPlace top(document, "the document");
  if (!document.is_object()) throw top.not_a("an object");
  const std::string schema = text_at(top, "schema");
  if (schema != "shardctl.layout/1") throw JsonPlace::wrong("wrong schema").expected("shardctl.layout/1").found(schema);
  check_keys(top, {"schema", "name", "mesh", "files", "rules"});
  text_at(top, "name");
  MeshLayout layout;
  layout.mesh = read_mesh(top.at("mesh"));
  if (const auto files = top.find("files")) {
    check_keys(*files, {"path"});
    layout.file_path = text_at(*files, "path");
  }
  const auto rules = top.find("rules");
  if (!rules) return layout;
  if (rules->json().size() > kMaxPlacements / layout.mesh.size()) {
    throw JsonPlace::wrong("its rules are too many for its axes")
        .expected(fmt::format("at most {} rules times axes", kMaxPlacements))
        .found(fmt::format("{} rules, {} axes", rules->json().size(), layout.mesh.size()));
  }
  const auto matcher = std::make_shared<DocumentMatcher>();
  for (const JsonPlace& rule : rules->items()) {
    layout.rules.push_back(read_rule(rule, layout.mesh, layout.rules.size(), *matcher));
  }
  matcher->finish();
  layout.matching = [matcher](std::string_view name) { return (*matcher)(name); };
  return layout;
} catch (Error& error) {
  throw error.in_file(file);
}

}  // namespace shard
