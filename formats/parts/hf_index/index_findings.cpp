#include "formats/parts/hf_index/index_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/first_names.h"
#include "libshard/io/paths.h"

namespace shard::hf_index {

namespace {

constexpr std::string_view kIndexEnd = ".index.json";

Error mismatch(const std::string& what, std::string_view name, const std::string& index) {
  return Error(ErrorCode::kCorruption, what).in_file(index).of_tensor(name).of_kind(FindingKind::kIndexMismatch);
}

/// Two sets that differ only in the count or the variant, or null.
std::pair<const CountedSet*, const CountedSet*> rivals(const std::vector<CountedSet>& sets) {
  const auto same = [](const CountedSet& a, const CountedSet& b) { return a.base == b.base; };
  const auto first = std::ranges::adjacent_find(sets, same);  // The sets are sorted by base.
  return first == sets.end() ? std::pair<const CountedSet*, const CountedSet*>() : std::pair(&*first, &*(first + 1));
}

std::string how_many(const CountedSet& set) {
  return fmt::format("{} ({})", set.pattern(),
                     set.missing.empty() ? fmt::format("all {} parts", set.names.size())
                                         : fmt::format("{} parts, {} is missing", set.names.size(), set.missing));
}

Error several_sets(const std::string& folder, const std::vector<CountedSet>& sets, const CountedSet& a,
                   const CountedSet& b) {
  Error error(ErrorCode::kCorruption, "the folder holds parts of more than one checkpoint, and no index");
  error.in_file(folder).because(fmt::format("{} and {}", how_many(a), how_many(b)));
  for (const bool is_whole : {true, false}) {
    for (const CountedSet& set : sets) {
      if (set.missing.empty() == is_whole) error.suggest(Remedy::kReadFiles, join_path(folder, set.pattern()));
    }
  }
  return error;
}

}  // namespace

std::optional<Error> counted_fault(const std::string& folder, const std::vector<std::string>& names,
                                   std::string_view suffix) {
  const std::vector<CountedSet> sets = counted_sets(names, suffix);
  if (const auto [a, b] = rivals(sets); a != nullptr) return several_sets(folder, sets, *a, *b);
  const std::string missing = missing_part(names, suffix);
  if (missing.empty()) return std::nullopt;
  return Error(ErrorCode::kNotFound, "a part that the names of the others count is missing")
      .in_file(join_path(folder, missing))
      .of_kind(FindingKind::kMissingFile)
      .hint("fetch the missing file, or name those to read one by one");
}

std::optional<Error> unnamed_parts(const std::vector<std::string>& names, std::string_view suffix) {
  const std::string missing = missing_part(names, suffix);
  if (missing.empty()) return std::nullopt;
  return Error(
             ErrorCode::kNotFound,
             fmt::format("other parts of this checkpoint are not read: their names would be {} and the like", missing))
      .in_file(names.front())
      .of_kind(FindingKind::kMissingFile)
      .because("only the files that were named are read");
}

std::optional<Error> lacks_parts(const std::string& index, const std::vector<std::string>& names,
                                 const std::vector<std::string>& listed, std::string_view suffix) {
  const std::vector<std::string> parts = unlisted_parts(names, listed, suffix);
  if (parts.empty()) return std::nullopt;
  return Error(ErrorCode::kCorruption, listed.empty() ? "the index names no file, but files lie beside it"
                                                      : "the index does not name all parts of its checkpoint")
      .in_file(index)
      .of_kind(FindingKind::kIndexMismatch)
      .because(fmt::format("their tensors would be left out: {}", first_names(parts)))
      .hint("download the index again, or rebuild it by repairing the checkpoint");
}

std::optional<StaleIndex> find_stale(const SourceStore& store, const std::string& folder, const std::string& index,
                                     const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                     std::string_view suffix) {
  const auto is_missing = [&](const std::string& name) {
    return store.status(join_path(folder, name)).kind == FileKind::kAbsent;
  };
  const auto missing = std::ranges::find_if(listed, is_missing);
  if (missing == listed.end()) return std::nullopt;
  const std::string_view single =
      index.ends_with(kIndexEnd) ? std::string_view(index).substr(0, index.size() - kIndexEnd.size()) : "";
  WholeSet whole = whole_set_beside(names, listed, single, suffix);
  if (whole.names.empty()) return std::nullopt;
  Error error(ErrorCode::kNotFound, fmt::format("{} names {}, which is missing", index, *missing));
  error.in_file(folder).of_kind(FindingKind::kMissingFile);
  error.because(
      fmt::format("the folder holds a whole checkpoint that the index does not name: {}", first_names(whole.names)));
  return StaleIndex{std::move(error), std::move(whole), std::ranges::all_of(listed, is_missing)};
}

Error extra_file(const std::string& name) {
  return Error(ErrorCode::kCorruption, "the index does not name this file")
      .in_file(name)
      .of_kind(FindingKind::kExtraFile)
      .because("readers of the checkpoint skip it");
}

Error unlisted_tensor(std::string_view name, const std::string& index) {
  return mismatch("the index does not list this tensor, which one of its files holds", name, index);
}

Error absent_tensor(std::string_view name, std::string_view file, const std::string& index) {
  return mismatch(fmt::format("the index places '{}' in {}, which lacks it", name, file), name, index);
}

Error misplaced_tensor(std::string_view name, const std::string& index) {
  return mismatch("another file also contains this tensor, contrary to the index", name, index);
}

}  // namespace shard::hf_index
