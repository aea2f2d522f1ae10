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

}  // namespace shard
