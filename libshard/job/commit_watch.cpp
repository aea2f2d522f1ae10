#include "libshard/job/commit_watch.h"

#include <fmt/format.h>

namespace shard {

namespace {

std::string list_of(const std::vector<bool>& ranks, bool wanted) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank] == wanted) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

bool CommitWatch::move(Group&, std::span<const std::int64_t> words) {
  for (std::size_t rank = 0; rank < words.size(); ++rank) has_committed_[rank] = words[rank] == kCommitted;
  return false;
}

Error CommitWatch::lost(int rank) const {
  std::vector<bool> known = has_committed_;
  known[static_cast<std::size_t>(rank)] = is_own_;
  return Error(ErrorCode::kPeer, "a rank died while the ranks were committing their outputs")
      .because(fmt::format("committed on ranks: {}; unknown on ranks: {}", list_of(known, true), list_of(known, false)))
      .suggest(Remedy::kReplaceDestination);
}

}  // namespace shard
