/// \file
/// Names and paths of entries, in an arena. Inside formats/hdf5 only.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/tree.h"

namespace shard::hdf5 {

/// A key, or the digits of an index.
std::string part_text(const PathPart& part);

/// Entries come depth first, so neighbours share the keys of the groups above them.
class EntryPaths {
 public:
  explicit EntryPaths(Arena& arena) : arena_(arena) {}

  /// From now on names of links and attributes are percent-encoded keys (link_names.h).
  void decode_names() { are_encoded_ = true; }

  /// Goes to the entry that these links lead to.
  void move_to(std::span<const std::string_view> links);

  struct Place {
    std::string_view name;  ///< The path joined by '.'.
    Path path;              ///< Compact: see compact_path.
  };
  /// Of the entry itself.
  Place place() const { return place_of(keys_); }
  /// An attribute's name as a key; in the arena only if it is decoded.
  std::string_view key_of(std::string_view attribute) const;
  /// Of a group's attribute: one more key.
  Place in_group(std::string_view key) const;
  /// Of a dataset's attribute, beside the dataset: its last key, a dot, and the attribute's name.
  Place beside_dataset(std::string_view key) const;

 private:
  Place place_of(std::span<const std::string_view> keys) const;

  Arena& arena_;
  bool are_encoded_ = false;
  std::vector<std::string> links_;      ///< Where it stands.
  std::vector<std::string_view> keys_;  ///< The same as keys, in the arena.
};

/// Of a leaf inside the value that stands at `place`.
EntryPaths::Place place_below(Arena& arena, const EntryPaths::Place& place, const TreeLeaf& leaf);

}  // namespace shard::hdf5
