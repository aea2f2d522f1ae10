#include "formats/parts/hf_index/index_findings.h"

#include <fmt/format.h>

#include "formats/parts/hf_index/folder_names.h"

namespace shard::hf_index {

namespace {

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
