#include "libshard/catalog/selection/selection.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "libshard/catalog/selection/casts.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/sort_unique.h"
#include "libshard/core/utf8.h"

namespace shard {

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

Error too_large() {
  return Error(ErrorCode::kInvalidArgument, "the renaming rules are too large")
      .because(fmt::format("their patterns may have {} instructions of RE2 together, and {} bytes each",
                           PatternSets::kMaxPrograms, PatternSizes::kMaxText));
}

/// Applies rules in order, each to the result of the rules before it. Invariant: among the rules from `next` on, the
/// first one that matches the current name is applied. The rules before that one do not match, so they change nothing.
class RenamingRules {
 public:
  explicit RenamingRules(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) add(text);
    if (!patterns_.compile()) throw too_large();
  }

  bool empty() const { return rules_.empty(); }

  /// \returns whether the name was changed.
  bool apply(std::string& name) const {
    bool is_changed = false;
    for (std::size_t at = first_match(name, 0); at < rules_.size(); at = first_match(name, at + 1)) {
      RE2::GlobalReplace(&name, *rules_[at].pattern, rules_[at].replacement);
      is_changed = true;
    }
    return is_changed;
  }

 private:
  struct Rule {
    std::unique_ptr<RE2> pattern;
    std::string replacement;
  };

  void add(const std::string& text) {
    const std::size_t equals = find_equals(text);
    if (equals == std::string_view::npos || equals == 0) throw malformed(text);
    Rule rule{patterns_.add(rules_.size(), text.substr(0, equals)), text.substr(equals + 1)};
    std::string why;
    if (rule.pattern == nullptr) throw too_large();
    if (!rule.pattern->ok()) throw malformed(text).because(rule.pattern->error());
    if (!rule.pattern->CheckRewriteString(rule.replacement, &why)) throw malformed(text).because(why);
    rules_.push_back(std::move(rule));
  }

  std::size_t first_match(std::string_view name, std::size_t next) const {
    std::vector<std::size_t> matching;
    patterns_.append_matching(name, matching);
    std::size_t first = rules_.size();
    for (const std::size_t rule : matching) {
      if (rule >= next) first = std::min(first, rule);
    }
    return first;
  }

  std::vector<Rule> rules_;
  PatternSets patterns_{RE2::UNANCHORED};
};

// Names and paths after prefixes are stripped and added and renaming rules are applied.

struct NamedPath {
  std::string_view name;
  Path path;
};

/// Refuses a change that makes a name unreadable for torch and others. Names with surrogates, which pickles may
/// contain, may be changed.
void check_encoding(std::string_view old_name, std::string_view name) {
  if (name == old_name || is_utf8(name) || !is_utf8(old_name)) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("the new name of '{}' is not valid UTF-8", old_name))
      .found(name);
}

/// The options' renaming rules, compiled. The cost of a name depends on its own changes, not on the number of rules.
class Renaming {
 public:
  /// \param nested  whether some path of the source has several parts, so that an added prefix becomes a container.
  /// \throws Error kInvalidArgument  a malformed renaming rule.
  Renaming(const SelectionOptions& options, bool nested, Arena& arena);
  bool changes_names() const;
  /// The resulting name and path of an entry. New names and paths are allocated in the arena.
  /// \throws Error kInvalidArgument  only the new name is not valid UTF-8.
  NamedPath apply(NamedPath entry);
  /// \throws Error kInvalidArgument  a prefix to strip that no entry had.
  void check_used() const;

 private:
  std::size_t prefix_of(std::string_view name, std::size_t next) const;
  void strip(NamedPath& entry, std::size_t prefix);
  void add(NamedPath& entry, std::string_view prefix);
  Path path_after(const NamedPath& old, std::string_view name) const;

  const SelectionOptions& options_;
  const bool nested_;
  Arena& arena_;
  std::vector<bool> used_;                                   ///< Whether each prefix to strip was used.
  HashMap<std::string, std::vector<std::size_t>> prefixes_;  ///< The numbers of each prefix, in rising order.
  std::vector<std::size_t> prefix_lengths_;                  ///< In rising order.
  RenamingRules rules_;
  std::string scratch_;
};

std::int64_t joined_size(const PathPart& part) {
  return static_cast<std::int64_t>(part.is_index ? fmt::formatted_size("{}", part.index) : part.key().size());
}

/// The number of whole leading parts, including the dots after them, that are `bytes` long. -1 if the prefix ends
/// inside a part.
int whole_parts(Path path, std::size_t bytes) {
  std::int64_t rest = static_cast<std::int64_t>(bytes);
  int parts = 0;
  while (rest > 0 && static_cast<std::size_t>(parts) < path.size()) {
    rest -= joined_size(path[static_cast<std::size_t>(parts)]) + 1;
    ++parts;
  }
  return rest == 0 ? parts : -1;
}

Renaming::Renaming(const SelectionOptions& options, bool nested, Arena& arena)
    : options_(options), nested_(nested), arena_(arena), used_(options.strip_prefix.size()), rules_(options.rename) {
  for (std::size_t i = 0; i < options.strip_prefix.size(); ++i) {
    const std::string& prefix = options.strip_prefix[i];
    if (prefix.empty()) throw Error(ErrorCode::kInvalidArgument, "cannot strip an empty prefix");
    prefixes_[prefix].push_back(i);
    prefix_lengths_.push_back(prefix.size());
  }
  sort_unique(prefix_lengths_);
}

bool Renaming::changes_names() const {
  return !options_.strip_prefix.empty() || !options_.add_prefix.empty() || !rules_.empty();
}

NamedPath Renaming::apply(NamedPath entry) {
  const std::string_view old_name = entry.name;
  for (std::size_t i = prefix_of(entry.name, 0); i < used_.size(); i = prefix_of(entry.name, i + 1)) strip(entry, i);
  for (const std::string& prefix : options_.add_prefix) add(entry, prefix);
  if (!rules_.empty()) {
    scratch_ = entry.name;
    if (rules_.apply(scratch_) && scratch_ != entry.name) {
      const std::string_view name = arena_.copy(scratch_);
      entry = {name, path_after(entry, name)};
    }
  }
  check_encoding(old_name, entry.name);
  return entry;
}

/// The first prefix to strip, from number `next` on, with which the name begins.
std::size_t Renaming::prefix_of(std::string_view name, std::size_t next) const {
  std::size_t first = used_.size();
  for (const std::size_t length : prefix_lengths_) {
    if (length > name.size()) break;
    const std::vector<std::size_t>* const numbers = prefixes_.find(name.substr(0, length));
    if (numbers == nullptr) continue;
    const auto found = std::ranges::lower_bound(*numbers, next);
    if (found != numbers->end()) first = std::min(first, *found);
  }
  return first;
}

/// If the prefix is the names of whole containers, they are removed from the path.
void Renaming::strip(NamedPath& entry, std::size_t prefix) {
  const std::string& text = options_.strip_prefix[prefix];
  used_[prefix] = true;
  const std::string_view name = entry.name.substr(text.size());
  const int parts = whole_parts(entry.path, text.size());
  const bool whole = parts > 0 && static_cast<std::size_t>(parts) < entry.path.size();
  entry = {name, whole ? compact_path(entry.path.without_first(static_cast<std::size_t>(parts)), name)
                       : path_after(entry, name)};
}

/// The text before the dot that ends as many words between dots as `like` has; empty without such a dot.
std::string_view words_like(std::string_view like, std::string_view text) {
  std::size_t end = text.find('.');
  for (auto dots = std::ranges::count(like, '.'); dots > 0 && end != std::string_view::npos; --dots) {
    end = text.find('.', end + 1);
  }
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

/// The path of a new name: the old parts with which the name still begins and ends. Between them, each old container
/// becomes one of as many words, and the rest is one key. A list gets no key, so it becomes part of the name.
Path Renaming::path_after(const NamedPath& old, std::string_view name) const {
  if (!nested_) return {};
  std::vector<PathPart> before(old.path.begin(), old.path.end()), after;
  if (before.empty()) before.push_back(PathPart::of_key(old.name));
  std::size_t kept = 0, begin = 0;
  const auto is_list_index = [](const PathPart& part) { return part.is_index && !part.is_int_key; };
  while (kept + 1 < before.size() && name.substr(begin).starts_with(before[kept].text() + '.')) {
    begin += before[kept++].text().size() + 1;
  }
  while (kept > 0 && is_list_index(before[kept])) begin -= before[--kept].text().size() + 1;
  std::string_view rest = name.substr(begin);
  for (; before.size() > kept && rest.ends_with('.' + before.back().text()); before.pop_back()) {
    rest.remove_suffix(before.back().text().size() + 1);
    after.push_back(before.back());
  }
  const bool is_whole = before.size() > kept && rest == before.back().text();
  const PathPart last = is_whole ? before.back() : PathPart();
  for (; !is_whole && kept + 1 < before.size() && !is_list_index(before[kept + 1]); ++kept) {
    const std::string_view words = words_like(before[kept].text(), rest);
    if (words.empty()) break;
    before[kept] = PathPart::of_key(words);
    rest.remove_prefix(words.size() + 1);
  }
  before.resize(kept);
  before.push_back(is_whole ? last : PathPart::of_key(rest));
  before.insert(before.end(), after.rbegin(), after.rend());
  const std::span<PathPart> path = arena_.array<PathPart>(before.size());
  std::ranges::copy(before, path.begin());
  return compact_path(Path(path), name);
}

/// A prefix that ends in a dot becomes containers, if the source has any. Other prefixes become part of the first key.
void Renaming::add(NamedPath& entry, std::string_view prefix) {
  if (prefix.empty()) return;
  scratch_.assign(prefix).append(entry.name);
  const std::string_view old_name = entry.name;
  entry.name = arena_.copy(scratch_);
  if (!nested_ || prefix.back() != '.' || old_name.empty()) {
    entry.path = old_name.empty() ? Path() : path_after({old_name, entry.path}, entry.name);
    return;
  }
  std::vector<PathPart> parts;
  for (std::string_view rest = entry.name.substr(0, prefix.size()); !rest.empty();) {
    const std::size_t dot = rest.find('.');
    parts.push_back(PathPart::of_key(rest.substr(0, dot)));
    rest.remove_prefix(dot + 1);
  }
  if (entry.path.empty()) {
    parts.push_back(PathPart::of_key(entry.name.substr(prefix.size())));
  } else {
    parts.insert(parts.end(), entry.path.begin(), entry.path.end());
  }
  const std::span<PathPart> path = arena_.array<PathPart>(parts.size());
  std::ranges::copy(parts, path.begin());
  entry.path = Path(path);
}

void Renaming::check_used() const {
  const auto unused = std::ranges::find(used_, false);
  if (unused == used_.end()) return;
  const std::string& prefix = options_.strip_prefix[static_cast<std::size_t>(unused - used_.begin())];
  throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot strip prefix '{}': no name begins with it", prefix))
      .found(prefix);
}

bool is_damaged(const Tensor& tensor) { return tensor.damaged; }
bool is_damaged(const Object&) { return false; }

/// Adjacent entries with equal names are allowed if they had one name before, because rank or path then distinguishes
/// them. Damaged tensors are not written, so their names do not matter.
template <class Entry, class Of>
void check_names(const std::vector<Entry>& entries, const std::vector<Of>& source, const char* what) {
  const Entry* last = nullptr;
  for (const Entry& b : entries) {
    const Of& from_b = source[b.source];
    if (is_damaged(from_b)) continue;
    const Entry* const before = std::exchange(last, &b);
    if (before == nullptr || before->name != b.name) continue;
    const Entry& a = *before;
    const Of& from_a = source[a.source];
    if (from_a.name != from_b.name) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}s '{}' and '{}' would both be named '{}'", what, from_a.name, from_b.name, a.name))
          .of_tensor(a.name)
          .of_kind(FindingKind::kDuplicateName);
    }
    if (from_a.rank == from_b.rank && a.path == b.path) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("two {}s are named '{}', and renaming would also give them the same path", what, from_a.name))
          .of_tensor(a.name)
          .of_kind(FindingKind::kDuplicateName);
    }
  }
}

template <class Entry>
void sort_by_name(std::vector<Entry>& entries) {
  if (!std::ranges::is_sorted(entries, {}, &Entry::name)) std::ranges::stable_sort(entries, {}, &Entry::name);
}

class Selector {
 public:
  Selector(const Catalog& source, const SelectionOptions& options)
      : source_(source),
        options_(options),
        takes_part_(name_filter(options)),
        renaming_(options, is_nested(), *selection_.arena) {}

  Selection run() {
    selection_.tensors.reserve(source_.tensors.size());
    for (std::uint32_t i = 0; i < source_.tensors.size(); ++i) {
      const Tensor& tensor = source_.tensors[i];
      if (!takes_part_(tensor.name)) continue;
      const NamedPath named = rename({tensor.name, tensor.path});
      selection_.tensors.push_back({i, tensor.dtype, named.name, named.path});
    }
    if (options_.keep_objects) selection_.objects.reserve(source_.objects.size());
    for (std::uint32_t i = 0; options_.keep_objects && i < source_.objects.size(); ++i) {
      const Object& object = source_.objects[i];
      if (!takes_part_(object.name)) continue;
      const NamedPath named = rename({object.name, object.path});
      selection_.objects.push_back({i, named.name, named.path});
    }
    renaming_.check_used();
    sort_by_name(selection_.tensors);  // Stable, because the source's order within a name is by rank.
    sort_by_name(selection_.objects);
    check_names(selection_.tensors, source_.tensors, "tensor");
    check_names(selection_.objects, source_.objects, "object");
    apply_casts(options_.cast, selection_.tensors);
    return std::move(selection_);
  }

 private:
  bool is_nested() const {
    const auto has_path = [](const auto& entry) { return !entry.path.empty(); };
    return std::ranges::any_of(source_.tensors, has_path) || std::ranges::any_of(source_.objects, has_path);
  }

  NamedPath rename(const NamedPath& entry) {
    if (!renaming_.changes_names()) return entry;
    const NamedPath renamed = renaming_.apply(entry);
    selection_.renamed = selection_.renamed || renamed.name != entry.name;
    return renamed;
  }

  const Catalog& source_;
  const SelectionOptions& options_;
  const std::function<bool(std::string_view)> takes_part_;
  Selection selection_;
  Renaming renaming_;
};

}  // namespace

std::function<bool(std::string_view)> name_filter(const SelectionOptions& options) {
  const auto include = std::make_shared<const GlobSet>(options.include);
  const auto exclude = std::make_shared<const GlobSet>(options.exclude);
  return [include, exclude](std::string_view name) {
    return (include->empty() || include->matches(name)) && (exclude->empty() || !exclude->matches(name));
  };
}

Selection select(const Catalog& source, const SelectionOptions& options) { return Selector(source, options).run(); }

}  // namespace shard
