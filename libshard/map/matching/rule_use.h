/// \file
/// RuleUse: records which rules of a map matched at least one name. Inside libshard/map only.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "libshard/map/documents/model_map.h"

namespace shard {

/// Ownership: the map must outlive it.
class RuleUse {
 public:
  explicit RuleUse(const ModelMap& map) : map_(map), used_(map.document().rules.size()) {}
  void add(std::size_t rule) { used_[rule] = true; }
  /// \returns warnings about rules that matched nothing, if the document demands only warnings.
  /// \throws Error kInvalidArgument  a rule that must match did not.
  std::vector<std::string> check() const;

 private:
  const ModelMap& map_;
  std::vector<bool> used_;
};

}  // namespace shard
