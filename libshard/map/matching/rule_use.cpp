#include "libshard/map/matching/rule_use.h"

#include <fmt/format.h>

#include "libshard/core/error.h"

namespace shard {

std::vector<std::string> RuleUse::check() const {
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const MapRule& rule = map_.rule(i);
    if (!used_[i] && !rule.optional && !rule.drops && map_.counts(rule)) unused.push_back(rule.where);
  }
  if (unused.empty()) return {};
  if (map_.document().must_use_rules) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot use the map: {} matches no tensor{}", unused.front(),
                            unused.size() == 1 ? "" : fmt::format("; neither do {} others", unused.size() - 1)))
        .because("the rule is not marked 'optional'")
        .found(unused.front());
  }
  std::vector<std::string> warnings;
  for (const std::string& where : unused) warnings.push_back(where + " of the map matches no tensor");
  return warnings;
}

}  // namespace shard
