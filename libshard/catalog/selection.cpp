#include "libshard/catalog/selection.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/casts.h"
#include "libshard/catalog/glob.h"
#include "libshard/catalog/renaming.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

/// Adjacent entries with equal names are allowed if they had one name before: then rank or path distinguishes them.
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
