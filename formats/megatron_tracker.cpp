#include "formats/megatron_tracker.h"

#include <fmt/format.h>

#include <optional>

#include "libshard/core/parse_number.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

std::string tracked_iteration(const SourceStore& store, const std::string& folder) {
  constexpr std::int64_t kMaxBytes = 64;
  const std::string text = small_text(store, join_path(folder, kTrackerName), kMaxBytes);
  if (text == "release") return text;
  const std::optional<std::int64_t> number = parse_natural(text);
  return number ? fmt::format("iter_{:07}", *number) : std::string();
}

}  // namespace shard
