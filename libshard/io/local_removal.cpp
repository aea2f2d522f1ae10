#include "libshard/io/local_removal.h"

#include "libshard/core/error.h"

namespace shard {

void LocalRemoval::commit() {
  if (parent_->status_of(to_.name).kind == FileKind::kAbsent) return;  // Somebody else removed it.
  const std::string aside = to_.sibling("old-");
  parent_->rename_new(to_.name, *parent_, aside);
  aside_ = aside;
  try {
    if (sync_) parent_->sync();
  } catch (...) {
    move_back();
    throw;
  }
}

void LocalRemoval::move_back() {
  if (aside_.empty()) return;
  parent_->rename_new(aside_, *parent_, to_.name);
  aside_.clear();
}

void LocalRemoval::take_back() {
  move_back();
  if (sync_) parent_->sync();
}

void LocalRemoval::abort() noexcept {
  if (aside_.empty()) return;
  try {
    parent_->remove_all(aside_);
  } catch (...) {  // It is not at the destination any more.
  }
  aside_.clear();
}

}  // namespace shard
