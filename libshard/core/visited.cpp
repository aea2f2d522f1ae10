#include "libshard/core/visited.h"

#include <fmt/format.h>

#include "libshard/core/error.h"

namespace shard {

void check_depth(int depth) {
  if (depth <= kMaxValueDepth) return;
  throw Error(ErrorCode::kCorruption, fmt::format("containers nest deeper than {}", kMaxValueDepth))
      .because("a container probably contains itself")
      .of_kind(FindingKind::kBadPickle);
}

const Value* ValueWalk::next() {
  if (last_ != nullptr) {
    const bool is_leaf = last_->items().empty() && last_->callee() == nullptr && last_->extra() == nullptr;
    if (!is_leaf && met_.insert(last_)) for_each_child(*last_, [this](const Value& child) { add(child); });
    last_ = nullptr;
  }
  if (open_.empty()) return nullptr;
  last_ = open_.back();
  open_.pop_back();
  return last_;
}

}  // namespace shard
