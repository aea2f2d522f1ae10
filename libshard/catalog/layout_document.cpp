#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <memory>

#include "libshard/catalog/document_text.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/pattern_sets.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxPlacements = 1 << 21;  ///< Each rule has one for every axis.

using json = nlohmann::ordered_json;

Error wrong(const std::string& message) { return Error(ErrorCode::kInvalidArgument, "layout document: " + message); }

void check_keys(const json& object, const char* where, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) throw wrong(fmt::format("{} is not an object", where)).found(object.type_name());
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, std::string_view(key)) != known.end()) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("layout document: key '{}' of {} is not supported", key, where))
        .expected(fmt::format("{}", fmt::join(known, ", ")))
        .found(key)
        .hint("describe it by a model map, which may say more than a layout (docs/maps.md)");
  }
}

std::string text_at(const json& object, const char* key, const char* where) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  if (!found->is_string()) throw wrong(fmt::format("{}.{} is not a string", where, key)).found(found->type_name());
  return found->get<std::string>();
}

std::vector<MeshAxis> read_mesh(const json& document) {
  const auto mesh = document.find("mesh");
  if (mesh == document.end()) throw wrong("key 'mesh' is missing");
  if (!mesh->is_object() || mesh->empty())
    throw wrong("mesh is not an object of axes and sizes").found(mesh->type_name());
  std::vector<MeshAxis> read;
  std::int64_t ranks = 1;
  for (const auto& [name, size] : mesh->items()) {
    const bool fits = size.is_number_unsigned() && size.get<std::uint64_t>() >= 1 &&
                      size.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxRanks / ranks);
    if (!fits) {
      throw wrong(fmt::format("mesh.{} is not a size", name))
          .expected(fmt::format("an integer of at least 1, and at most {} ranks in all", kMaxRanks))
          .found(size.dump());
    }
    ranks *= size.get<std::int64_t>();
    read.push_back({name, size.get<std::int64_t>()});
  }
  return read;
}

std::size_t read_axis(const json& cut, const std::vector<MeshAxis>& mesh, const std::string& where) {
  const std::string name = text_at(cut, "axis", where.c_str());
  const auto axis = std::ranges::find(mesh, name, &MeshAxis::name);
  if (axis == mesh.end()) throw wrong(fmt::format("{} names axis '{}', which mesh lacks", where, name)).found(name);
  return static_cast<std::size_t>(axis - mesh.begin());
}

int read_dim(const json& cut, const std::string& where) {
  const auto dim = cut.find("dim");
  const bool is_integer = dim != cut.end() && dim->is_number_integer();
  const bool fits = is_integer && (dim->is_number_unsigned() ? dim->get<std::uint64_t>() < std::uint64_t{kMaxDims}
                                                             : dim->get<std::int64_t>() >= -kMaxDims);
  if (!fits) throw wrong(where + ".dim is not a dimension");
  return dim->get<int>();
}

Placement read_cut(const json& cut, const std::string& where) {
  Placement placement{Placement::kShard, read_dim(cut, where), 1};
  const auto factor = cut.find("split_factor");
  if (factor == cut.end()) return placement;
  const bool fits = factor->is_number_unsigned() && factor->get<std::uint64_t>() >= 1 &&
                    factor->get<std::uint64_t>() <= std::uint64_t{kMaxRanks};
  if (!fits) throw wrong(where + ".split_factor is not a size").found(factor->dump());
  placement.kind = Placement::kStridedShard;
  placement.split_factor = factor->get<std::int64_t>();
  return placement;
}

/// The axes in the order of cutting: those of `shard` first, then the others, which hold replicas.
void read_shard(const json& shard, const std::vector<MeshAxis>& mesh, const std::string& where,
                MeshLayout::Rule& rule) {
  if (!shard.is_array()) throw wrong(where + ".shard is not a list").found(shard.type_name());
  for (const json& cut : shard) {
    check_keys(cut, (where + ".shard").c_str(), {"axis", "dim", "split_factor"});
    const std::size_t axis = read_axis(cut, mesh, where + ".shard");
    if (std::ranges::find(rule.order, axis) != rule.order.end()) {
      throw wrong(fmt::format("{}.shard names axis '{}' twice", where, mesh[axis].name));
    }
    rule.order.push_back(axis);
    rule.placements[axis] = read_cut(cut, where + ".shard");
  }
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (std::ranges::find(rule.order, axis) == rule.order.end()) rule.order.push_back(axis);
  }
}

/// The names that a pattern lists one by one; nothing where it is a true pattern.
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

/// What the rules of a document match: lists of names by binary search, patterns in sets, so that a name is passed over
/// once for many of them.
class DocumentMatcher {
 public:
  /// Rules are added in their order. `where` names the rule in messages.
  void add(std::size_t rule, const std::string& match, const std::string& where) {
    if (const std::optional<std::vector<std::string>> names = listed_names(match)) {
      for (const std::string& name : *names) names_.emplace_back(name, rule);
      return;
    }
    const std::unique_ptr<RE2> pattern = patterns_.add(rule, match);
    if (pattern == nullptr) throw too_large();
    if (!pattern->ok()) throw wrong(where + ".match is not a regular expression").because(pattern->error());
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
    return wrong("the patterns of the rules are too large")
        .because(fmt::format("they may have {} instructions together, and {} bytes each", PatternSets::kMaxPrograms,
                             PatternSizes::kMaxText));
  }

  std::vector<Listed> names_;  ///< Sorted.
  PatternSets patterns_{RE2::ANCHOR_BOTH};
  MatchTime time_;
};

MeshLayout::Rule read_rule(const json& object, const std::vector<MeshAxis>& mesh, std::size_t number,
                           DocumentMatcher& matcher) {
  std::string where = fmt::format("rules[{}]", number);
  check_keys(object, where.c_str(), {"id", "match", "shard"});
  if (const std::string id = text_at(object, "id", where.c_str()); !id.empty()) where = fmt::format("rule '{}'", id);
  if (!object.contains("match")) throw wrong(where + " has no key 'match'");
  MeshLayout::Rule rule;
  rule.source = text_at(object, "match", where.c_str());
  rule.placements.resize(mesh.size());
  if (object.contains("shard")) read_shard(object["shard"], mesh, where, rule);
  matcher.add(number, rule.source, where);
  return rule;
}

}  // namespace

MeshLayout parse_layout_document(std::string_view text, const std::string& file) try {
  const json document = parse_document_text(text, kMaxLayoutValues);
  if (!document.is_object()) throw wrong("not an object").found(document.type_name());
  const std::string schema = text_at(document, "schema", "the document");
  if (schema != "shardctl.layout/1") throw wrong("wrong schema").expected("shardctl.layout/1").found(schema);
  check_keys(document, "the document", {"schema", "name", "mesh", "files", "rules"});
  text_at(document, "name", "the document");
  MeshLayout layout;
  layout.mesh = read_mesh(document);
  if (const auto files = document.find("files"); files != document.end()) {
    check_keys(*files, "files", {"path"});
    layout.file_path = text_at(*files, "path", "files");
  }
  const auto rules = document.find("rules");
  if (rules == document.end()) return layout;
  if (!rules->is_array()) throw wrong("rules is not a list").found(rules->type_name());
  if (rules->size() > kMaxPlacements / layout.mesh.size()) {
    throw wrong("its rules are too many for its axes")
        .expected(fmt::format("at most {} rules times axes", kMaxPlacements))
        .found(fmt::format("{} rules, {} axes", rules->size(), layout.mesh.size()));
  }
  const auto matcher = std::make_shared<DocumentMatcher>();
  for (const json& rule : *rules) layout.rules.push_back(read_rule(rule, layout.mesh, layout.rules.size(), *matcher));
  matcher->finish();
  layout.matching = [matcher](std::string_view name) { return (*matcher)(name); };
  return layout;
} catch (Error& error) {
  throw error.in_file(file);
}

}  // namespace shard
