/// \file MapNames: relates the names of a map's tensors on both sides by the numbers and words in them. Inside
///   libshard/map only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/hash_table.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// The values of a rule's placeholders: one text per placeholder of its first logical name, in that order. Empty text
/// if the placeholder is stacked.
using NameValues = std::vector<std::string>;

/// The key that all parts of one stored tensor's group share.
struct GroupKey {
  std::size_t rule = 0;
  NameValues values{};
  std::int32_t rank = -1;  ///< The rank that owns them, without a mesh.

  bool operator==(const GroupKey&) const = default;
};
struct GroupKeyHash {
  KeyedHash hash{};
  std::uint64_t operator()(const GroupKey& key) const;
};

/// Pure. Ownership: the map must outlive it.
class MapNames {
 public:
  /// The limit on the numbers and parts of all indexes in a document. Each uses about 60 bytes.
  static constexpr std::int64_t kMaxIndexNumbers = 2 << 20;
  /// \throws Error kInvalidArgument  the numbers of an index do not fit its axis.
  explicit MapNames(const ModelMap& map);

  /// The values for a stored name at a coordinate, or nothing if no tensor of the rule has these numbers there.
  std::optional<NameValues> values_of_stored(const NameMatch& match, std::span<const std::int64_t> coordinate) const;
  /// The values for a logical name, and the positions of its stacked indices. \throws Error kInvalidArgument  one of
  /// them is not a number
  std::pair<NameValues, std::vector<std::int64_t>> values_of_logical(const NameMatch& match) const;

  /// Whether the tensor with these values is at the coordinate, judged by the indices that have an axis.
  bool is_at(std::size_t rule, const NameValues& values, std::span<const std::int64_t> coordinate) const;
  std::string stored_name(std::size_t rule, const NameValues& values) const;
  std::string logical_name(std::size_t rule, std::size_t segment, NameValues values,
                           std::span<const std::int64_t> stack) const;
  /// The positions of a rule's stacked indices that are at a coordinate, given the sizes of the indices.
  struct StackRange {
    std::vector<std::int64_t> begin, size;
  };
  StackRange stack_at(std::size_t rule, std::span<const std::int64_t> stack,
                      std::span<const std::int64_t> coordinate) const;
  /// The number of positions of a stacked index, if the document states it.
  std::optional<std::int64_t> stated_count(const std::string& index) const;

 private:
  /// The place of an index's number.
  struct Place {
    std::int64_t coordinate = 0, chunk = 0, local = -1;

    auto operator<=>(const Place&) const = default;
  };
  struct Index {
    const MapIndex* document = nullptr;
    std::int64_t begin = 0;     ///< The first number.
    std::vector<Place> places;  ///< By number from `begin`. Empty if the document does not state the count.
    std::vector<std::pair<Place, std::int64_t>> numbers;  ///< The numbers, sorted by place.
  };
  /// A placeholder in a stored name.
  struct StoredPart {
    enum class Is : std::uint8_t { kValue, kLocal, kChunk } is = Is::kValue;
    std::size_t value = 0;  ///< Index into NameValues.
    const Index* index = nullptr;
  };
  struct Rule {
    std::vector<std::vector<std::size_t>> order;  ///< By segment and placeholder: the index into NameValues.
    std::vector<StoredPart> stored;               ///< By placeholder.
    std::vector<std::size_t> stack;               ///< By stacked index: the index into NameValues.
    std::vector<const Index*> on_axis;            ///< By NameValues: the index if it has an axis, otherwise null.
  };

  Index make_index(const MapIndex& document);
  /// The numbers of each part, if an index of `count` numbers from `begin` has `parts` parts.
  std::vector<std::vector<std::int64_t>> parts_of(const MapIndex& document, std::int64_t begin, std::int64_t count,
                                                  std::int64_t parts) const;
  std::vector<std::vector<std::int64_t>> parts_of_table(const MapIndex& document, std::int64_t begin,
                                                        std::int64_t count, std::int64_t parts) const;
  Rule make_rule(const MapRule& rule) const;
  const Index* find_index(const std::string& name) const;
  std::int64_t begin_of(std::size_t rule, std::size_t stacked) const;
  static const Place* place_of(const Index& index, const std::string& value);

  const ModelMap& map_;
  std::int64_t numbers_left_ = kMaxIndexNumbers;
  std::vector<Index> indices_;
  std::vector<Rule> rules_;
};

/// Records which rules of a map matched at least one name. Ownership: the map must outlive it.
class RuleUse {
 public:
  explicit RuleUse(const ModelMap& map) : map_(map), used_(map.document().rules.size()) {}
  void add(std::size_t rule) { used_[rule] = true; }
  /// \returns warnings about rules that matched nothing, if the document demands only warnings, or that none matched.
  /// \throws Error kInvalidArgument  a rule that must match did not.
  std::vector<std::string> check() const;

 private:
  const ModelMap& map_;
  std::vector<bool> used_;
};

}  // namespace shard
