#include "libshard/catalog/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libshard/catalog/glob.h"
#include "libshard/catalog/renaming.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"

namespace shard {

namespace {

bool has_wildcard(std::string_view glob) { return glob.find_first_of("*?[") != std::string_view::npos; }

/// The name nearest to `typed` that at least half of it agrees with, or empty.
std::string nearest_name(const std::vector<SelectedTensor>& tensors, std::string_view typed) {
  std::string_view nearest;
  int limit = std::max(1, static_cast<int>(typed.size()) / 2 - 1);
  for (const SelectedTensor& tensor : tensors) {
    const int found = edit_distance(typed, tensor.name, limit);
    if (found > limit) continue;
    nearest = tensor.name;
    limit = found - 1;
  }
  return std::string(nearest);
}

struct CastRule {
  std::string_view text, glob;
  DType dtype;
  bool exact;
  bool used = false;
};

std::vector<CastRule> parse_casts(const std::vector<std::string>& texts) {
  std::vector<CastRule> rules;
  for (const std::string& text : texts) {
    const std::size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cast rule '{}' is malformed", text))
          .expected("GLOB=DTYPE")
          .found(text);
    }
    const std::string_view glob = std::string_view(text).substr(0, equals);
    const std::optional<DType> dtype = dtype_of_name(std::string_view(text).substr(equals + 1));
    if (!dtype) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("cast rule '{}': '{}' is not a dtype", text, text.substr(equals + 1)))
          .expected("a torch dtype such as bfloat16, float32, float8_e4m3fn")
          .found(text.substr(equals + 1));
    }
    rules.push_back({text, glob, *dtype, !has_wildcard(glob)});
  }
  return rules;
}

/// The first rule that matches decides; a pattern passes integers and bools by, as those are ids and masks mostly.
DType wanted_dtype(std::vector<CastRule>& rules, const GlobSet& globs, std::string_view name, DType dtype) {
  const bool is_number = !is_integer(dtype) && dtype != DType::kBool;
  std::optional<DType> wanted;
  for (const std::size_t i : globs.matching(name)) {
    rules[i].used = true;
    if (!wanted && (is_number || rules[i].exact)) wanted = rules[i].dtype;
  }
  return wanted.value_or(dtype);
}

/// The glob that was probably meant by a rule without a match; empty if there is no good guess.
std::string meant_glob(const std::vector<SelectedTensor>& tensors, const CastRule& rule) {
  if (rule.exact) return nearest_name(tensors, rule.glob);
  std::string crossing = crossing_dots(rule.glob);
  const GlobSet globs({crossing});
  const bool helps = std::ranges::any_of(tensors, [&](const SelectedTensor& each) { return globs.matches(each.name); });
  return helps ? crossing : nearest_name(tensors, rule.glob);
}

void apply_casts(const std::vector<std::string>& texts, std::vector<SelectedTensor>& tensors) {
  std::vector<CastRule> rules = parse_casts(texts);
  if (rules.empty()) return;
  GlobSet globs;
  for (const CastRule& rule : rules) globs.add(rule.glob);
  for (SelectedTensor& tensor : tensors) {
    const DType wanted = wanted_dtype(rules, globs, tensor.name, tensor.dtype);
    if (wanted != tensor.dtype && !(is_castable(tensor.dtype) && is_castable(wanted))) {
      throw Error(ErrorCode::kUnsupported, fmt::format("tensor '{}': no cast from {} to {}", tensor.name,
                                                       dtype_name(tensor.dtype), dtype_name(wanted)))
          .of_tensor(tensor.name);
    }
    tensor.dtype = wanted;
  }
  const auto unused = std::ranges::find(rules, false, &CastRule::used);
  if (unused == rules.end()) return;
  Error error(ErrorCode::kInvalidArgument, fmt::format("cast rule '{}' matches no tensor", unused->text));
  const std::string nearest = meant_glob(tensors, *unused);
  if (!nearest.empty()) error.hint(fmt::format("did you mean '{}={}'?", nearest, dtype_name(unused->dtype)));
  throw error.found(unused->glob);
}

/// Neighbours of one name are fine where they had one name before: then rank or path tells them apart.
template <class Entry, class Of>
void check_names(const std::vector<Entry>& entries, const std::vector<Of>& source, const char* what) {
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const Entry &a = entries[i - 1], &b = entries[i];
    if (a.name != b.name) continue;
    const Of &from_a = source[a.source], &from_b = source[b.source];
    if (from_a.name != from_b.name) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}s '{}' and '{}' would both be named '{}'", what, from_a.name, from_b.name, a.name))
          .of_tensor(a.name)
          .of_kind(FindingKind::kDuplicateName);
    }
    if (from_a.rank == from_b.rank && a.path == b.path) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("two {}s are named '{}', and renaming would make their paths one too", what, from_a.name))
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
        include_(options.include),
        exclude_(options.exclude),
        renaming_(options, is_nested(), *selection_.arena) {}

  Selection run() {
    selection_.tensors.reserve(source_.tensors.size());
    for (std::uint32_t i = 0; i < source_.tensors.size(); ++i) {
      const Tensor& tensor = source_.tensors[i];
      if (!takes_part(tensor.name)) continue;
      const NamedPath named = rename({tensor.name, tensor.path});
      selection_.tensors.push_back({i, tensor.dtype, named.name, named.path});
    }
    if (options_.keep_objects) selection_.objects.reserve(source_.objects.size());
    for (std::uint32_t i = 0; options_.keep_objects && i < source_.objects.size(); ++i) {
      const Object& object = source_.objects[i];
      if (!takes_part(object.name)) continue;
      const NamedPath named = rename({object.name, object.path});
      selection_.objects.push_back({i, named.name, named.path});
    }
    renaming_.check_used();
    sort_by_name(selection_.tensors);  // Stable: the source's order is by rank within a name.
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

  bool takes_part(std::string_view name) const {
    return (include_.empty() || include_.matches(name)) && (exclude_.empty() || !exclude_.matches(name));
  }

  NamedPath rename(const NamedPath& entry) {
    if (!renaming_.changes_names()) return entry;
    const NamedPath renamed = renaming_.apply(entry);
    selection_.renamed = selection_.renamed || renamed.name != entry.name;
    return renamed;
  }

  const Catalog& source_;
  const SelectionOptions& options_;
  GlobSet include_, exclude_;
  Selection selection_;
  Renaming renaming_;
};

}  // namespace

Selection select(const Catalog& source, const SelectionOptions& options) { return Selector(source, options).run(); }

}  // namespace shard
