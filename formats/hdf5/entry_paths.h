/// \file
/// Names and paths of entries, and their keys in HDF5's links and attributes. Inside formats/hdf5 only.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/tree.h"

namespace shard::hdf5 {

// A link's name cannot contain '/' or NUL, and cannot be empty, "." or ".."; keys can. In shardctl's files such keys
// are percent-encoded, and '%' with them; the root's attribute `shardctl.names` records this. Names of attributes are
// encoded in the same way. Names in other files are used unchanged.

/// The root's attribute, and its value.
inline constexpr std::string_view kNamesAttribute = "shardctl.names";
inline constexpr std::string_view kPercentEncoded = "percent-encoded";

/// '/', '%' and NUL become %2F, %25 and %00; "" becomes "%", "." and ".." become "%2E" and "%2E%2E".
std::string link_name(std::string_view key);
/// The inverse. Text that link_name never produces is kept unchanged.
std::string key_of_link(std::string_view link);

/// The prefix of shardctl's own attributes.
inline constexpr std::string_view kReserved = "shardctl.";

/// Like link_name. A key that could be the name of one of shardctl's own attributes gets a '%' before it.
std::string attribute_name(std::string_view key);
/// The inverse of attribute_name.
std::string key_of_attribute(std::string_view name);

/// The paths of entries. Entries are in depth-first order, so neighbours share the keys of their parent groups.
class EntryPaths {
 public:
  explicit EntryPaths(Arena& arena) : arena_(arena) {}

  /// Declares that names of links and attributes from here on are percent-encoded keys.
  void decode_names() { are_encoded_ = true; }

  /// Moves to the entry at the end of these links.
  void move_to(std::span<const std::string_view> links);

  struct Place {
    std::string_view name;  ///< The path joined by '.'.
    Path path;              ///< Compact: see compact_path.
  };
  /// The place of the entry itself.
  Place place() const { return place_of(keys_); }
  /// An attribute's name as a key; in the arena only if it is decoded.
  std::string_view key_of(std::string_view attribute) const;
  /// The place of a group's attribute: one more key.
  Place in_group(std::string_view key) const;
  /// The place of a dataset's attribute, which is beside the dataset: the dataset's last key, a dot, and the
  /// attribute's name.
  Place beside_dataset(std::string_view key) const;

 private:
  Place place_of(std::span<const std::string_view> keys) const;

  Arena& arena_;
  bool are_encoded_ = false;
  std::vector<std::string> links_;      ///< The links of the current entry.
  std::vector<std::string_view> keys_;  ///< The same links as keys, in the arena.
};

/// The place of a leaf inside the value at `place`.
EntryPaths::Place place_below(Arena& arena, const EntryPaths::Place& place, const TreeLeaf& leaf);

}  // namespace shard::hdf5
