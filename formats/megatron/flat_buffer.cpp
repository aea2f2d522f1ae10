#include "formats/megatron/flat_buffer.h"

#include "libshard/core/checked.h"

namespace shard::megatron {

std::optional<std::vector<std::int64_t>> begins_in_buffer(std::span<const std::int64_t> numels, std::int64_t elements) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::int64_t> begins(numels.size());
  std::int64_t end = 0;
  for (std::size_t i = numels.size(); i-- > 0;) {
    begins[i] = checked_mul(ceil_div(end, kAlignment), kAlignment);
    end = checked_add(begins[i], numels[i]);
  }
  return end == elements ? std::optional(begins) : std::nullopt;
}

}  // namespace shard::megatron
