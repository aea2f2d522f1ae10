#include "libshard/catalog/renaming.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"

namespace shard {

struct Renaming::Rule {
  std::unique_ptr<RE2> pattern;
  std::string replacement;
};

namespace {

/// The '=' between pattern and replacement: the first without a backslash before it (RE2 reads `\=` as '=').
std::size_t find_equals(std::string_view rule) {
  for (std::size_t i = 0; i < rule.size(); ++i) {
    if (rule[i] == '\\') {
      ++i;
    } else if (rule[i] == '=') {
      return i;
    }
  }
  return std::string_view::npos;
}

Error malformed(std::string_view rule) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("renaming rule '{}' is malformed", rule))
      .expected("REGEX=REPLACEMENT")
      .found(rule);
}

std::int64_t joined_size(const PathPart& part) {
  return static_cast<std::int64_t>(part.is_index ? fmt::formatted_size("{}", part.index) : part.key.size());
}

/// How many whole leading parts, with the dots after them, are `bytes` long; -1 where the prefix ends inside a part.
int whole_parts(Path path, std::size_t bytes) {
  std::int64_t rest = static_cast<std::int64_t>(bytes);
  int parts = 0;
  while (rest > 0 && static_cast<std::size_t>(parts) < path.size()) {
    rest -= joined_size(path[static_cast<std::size_t>(parts)]) + 1;
    ++parts;
  }
  return rest == 0 ? parts : -1;
}

}  // namespace

Renaming::Renaming(const SelectionOptions& options, bool nested, Arena& arena)
    : options_(options), nested_(nested), arena_(arena), used_(options.strip_prefix.size()) {
  for (const std::string& text : options.rename) {
    const std::size_t equals = find_equals(text);
    if (equals == std::string_view::npos || equals == 0) throw malformed(text);
    RE2::Options re2_options;
    re2_options.set_log_errors(false);
    Rule rule{std::make_unique<RE2>(text.substr(0, equals), re2_options), text.substr(equals + 1)};
    std::string why;
    if (!rule.pattern->ok()) throw malformed(text).because(rule.pattern->error());
    if (!rule.pattern->CheckRewriteString(rule.replacement, &why)) throw malformed(text).because(why);
    rules_.push_back(std::move(rule));
  }
}

Renaming::~Renaming() = default;

bool Renaming::changes_names() const {
  return !options_.strip_prefix.empty() || !options_.add_prefix.empty() || !rules_.empty();
}

NamedPath Renaming::apply(NamedPath entry) {
  for (std::size_t i = 0; i < options_.strip_prefix.size(); ++i) strip(entry, i);
  for (const std::string& prefix : options_.add_prefix) add(entry, prefix);
  for (const Rule& rule : rules_) {
    scratch_ = entry.name;
    if (RE2::GlobalReplace(&scratch_, *rule.pattern, rule.replacement) > 0 && scratch_ != entry.name) {
      entry = {arena_.copy(scratch_), {}};
    }
  }
  return entry;
}

void Renaming::strip(NamedPath& entry, std::size_t prefix) {
  const std::string& text = options_.strip_prefix[prefix];
  if (text.empty() || !entry.name.starts_with(text)) return;
  used_[prefix] = true;
  entry.name.remove_prefix(text.size());
  const int parts = whole_parts(entry.path, text.size());
  const bool whole = parts > 0 && static_cast<std::size_t>(parts) < entry.path.size();
  entry.path = whole ? compact_path(entry.path.subspan(static_cast<std::size_t>(parts)), entry.name) : Path();
}

void Renaming::add(NamedPath& entry, std::string_view prefix) {
  if (prefix.empty()) return;
  scratch_.assign(prefix).append(entry.name);
  const std::string_view old_name = entry.name;
  entry.name = arena_.copy(scratch_);
  if (!nested_ || prefix.back() != '.' || old_name.empty()) {
    entry.path = {};
    return;
  }
  std::vector<PathPart> parts;
  for (std::string_view rest = entry.name.substr(0, prefix.size()); !rest.empty();) {
    const std::size_t dot = rest.find('.');
    parts.push_back({rest.substr(0, dot), 0, false});
    rest.remove_prefix(dot + 1);
  }
  if (entry.path.empty()) {
    parts.push_back({entry.name.substr(prefix.size()), 0, false});
  } else {
    parts.insert(parts.end(), entry.path.begin(), entry.path.end());
  }
  const std::span<PathPart> path = arena_.array<PathPart>(parts.size());
  std::ranges::copy(parts, path.begin());
  entry.path = path;
}

void Renaming::check_used() const {
  const auto unused = std::ranges::find(used_, false);
  if (unused == used_.end()) return;
  const std::string& prefix = options_.strip_prefix[static_cast<std::size_t>(unused - used_.begin())];
  throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot strip prefix '{}': no name begins with it", prefix))
      .found(prefix);
}

}  // namespace shard
