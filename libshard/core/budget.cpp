#include "libshard/core/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard {

void Budget::earn(std::int64_t bytes, std::int64_t data_bytes) noexcept {
  constexpr std::int64_t kMost = std::int64_t{1} << 54;  // Limits each number, so that nothing overflows.
  read_ = std::min(kMost, read_ + std::min(kMost - read_, bytes));
  data_ = std::min(kMost, data_ + std::min(kMost - data_, data_bytes));
  const std::int64_t small = std::min(read_, kSmallBytes);
  limit_ = kBudgetFloor + kBudgetPerByte * small + kBudgetPerFurtherByte * (read_ - small) + kBudgetPerDataByte * data_;
}

void Budget::refuse(Charge what) const {
  const std::string_view name = kChargePrices[static_cast<std::size_t>(what)].name;
  throw Error(ErrorCode::kCorruption,
              fmt::format("cannot read the checkpoint: {} {} are far too many for the {} bytes that describe it",
                          count(what), name, read_))
      .of_kind(FindingKind::kBadHeader)
      .expected(fmt::format("at most {} bytes of memory and work in all", limit_))
      .found(fmt::format("{}", spent_))
      .because("no real checkpoint needs this much; the file may be built to exhaust memory or time");
}

}  // namespace shard
