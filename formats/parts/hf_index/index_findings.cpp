#include "formats/parts/hf_index/index_findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/hf_index/folder_names.h"
#include "libshard/io/paths.h"

namespace shard::hf_index {

namespace {

constexpr std::string_view kIndexEnd = ".index.json";

Error mismatch(const char* what, std::string_view name, const std::string& index) {
  return Error(ErrorCode::kCorruption, what).in_file(index).of_tensor(name).of_kind(FindingKind::kIndexMismatch);
}

}  // namespace

std::optional<Error> lacks_parts(const std::string& index, const std::vector<std::string>& names,
                                 const std::vector<std::string>& listed, std::string_view suffix) {
  const std::vector<std::string> parts = unlisted_parts(names, listed, suffix);
  if (parts.empty()) return std::nullopt;
  return Error(ErrorCode::kCorruption, listed.empty() ? "the index names no file, but files lie beside it"
                                                      : "the index does not name all parts of its checkpoint")
      .in_file(index)
      .of_kind(FindingKind::kIndexMismatch)
      .because(fmt::format("their tensors would be left out: {}", first_few(parts)))
      .hint("fetch the index again, or repair the checkpoint, which makes the index anew");
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
      fmt::format("the folder holds a whole checkpoint that the index does not name: {}", first_few(whole.names)));
  return StaleIndex{std::move(error), std::move(whole), std::ranges::all_of(listed, is_missing)};
}

Error extra_file(const std::string& name) {
  return Error(ErrorCode::kCorruption, "the index does not name this file")
      .in_file(name)
      .of_kind(FindingKind::kExtraFile)
      .because("it is left out when the checkpoint is read");
}

Error unlisted_tensor(std::string_view name, const std::string& index) {
  return mismatch("the index does not list this tensor, which one of its files holds", name, index);
}

Error misplaced_tensor(std::string_view name, const std::string& index) {
  return mismatch("this tensor lies in another file than the index says, too", name, index);
}

}  // namespace shard::hf_index
