#include "libshard/catalog/layouts/placement_text.h"

#include "libshard/core/parse_number.h"

namespace shard {

std::optional<std::int64_t> rank_of_placement(std::string_view placement) {
  constexpr std::string_view kLead = "rank:";
  if (!placement.starts_with(kLead)) return std::nullopt;
  placement.remove_prefix(kLead.size());
  const std::optional<std::int64_t> rank = take_natural(placement);
  return placement.empty() || placement.starts_with('/') ? rank : std::nullopt;
}

}  // namespace shard
