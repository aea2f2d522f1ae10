#include "formats/parts/hf_index/index_findings.h"

namespace shard::hf_index {

namespace {

Error mismatch(const char* what, std::string_view name, const std::string& index) {
  return Error(ErrorCode::kCorruption, what).in_file(index).of_tensor(name).of_kind(FindingKind::kIndexMismatch);
}

}  // namespace

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
