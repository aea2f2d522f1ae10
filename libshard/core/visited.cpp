#include "libshard/core/visited.h"

#include <fmt/format.h>

#include "libshard/core/error.h"

namespace shard {

void check_walk(int depth, std::int64_t visits) {
  if (depth <= kMaxValueDepth && visits <= kMaxValueVisits) return;
  const bool deep = depth > kMaxValueDepth;
  throw Error(ErrorCode::kCorruption, deep ? fmt::format("containers nest deeper than {}", kMaxValueDepth)
                                           : fmt::format("containers hold more than {} entries", kMaxValueVisits))
      .because("no checkpoint does; a container that holds itself, or one that many share, may")
      .of_kind(FindingKind::kBadPickle);
}

}  // namespace shard
