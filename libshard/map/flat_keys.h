/// \file
/// FlatKeys: in which group of buffers a tensor lies, and where in its order. Inside libshard/map only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/pattern_sets.h"
#include "libshard/core/hash_table.h"
#include "libshard/map/flatten.h"

namespace shard {

class FlatKeys {
 public:
  struct Place {
    std::string group;  ///< What stands for {group}: its number, or what its pattern captures.
    /// In the document's order: item, numbers of its placeholders, name of the item; none where names decide.
    std::vector<std::int64_t> order;
  };

  /// \throws Error kInvalidArgument  patterns that are too large
  explicit FlatKeys(const MapFlatten& flatten);

  /// The key for a model's stored name, or nothing if no group matches or the list of names does not contain it.
  /// \throws Error kInvalidArgument  two items of the list have it
  std::optional<Place> find(std::string_view key) const;

 private:
  std::optional<Place> place_of(std::string_view key) const;
  std::optional<std::string> group_of(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> order_of(std::string_view key) const;

  struct Pattern {
    std::unique_ptr<RE2> compiled;
    std::int64_t item, name;
  };
  const MapFlatten& flatten_;
  std::vector<std::unique_ptr<RE2>> groups_;
  HashMap<std::string, std::vector<std::int64_t>> plain_;  ///< Names of the list without placeholders.
  HashMap<std::string, std::string> group_of_name_;        ///< Of param_shapes.
  std::vector<Pattern> patterns_;                          ///< Those with some.
  PatternSets sets_{RE2::ANCHOR_BOTH};                     ///< By pattern.
  MatchTime time_;
};

}  // namespace shard
