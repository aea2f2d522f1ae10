/// \file
/// The attributes of the root group in which shardctl's files record their properties. Inside formats/hdf5 only.
///
/// | attribute | content |
/// |---|---|
/// | shardctl.names | names of links are percent-encoded keys (entry_paths.h) |
/// | shardctl.tree | the container tree, see dump_tree |
/// | shardctl.world_size | in a master and in ranks' files: the number of ranks |
/// | shardctl.rank | in a rank's file: the rank of its pieces |
/// | shardctl.metadata.KEY | Catalog::metadata; KEY is encoded by link_name() |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/arena.h"

namespace shard::hdf5 {

inline constexpr std::string_view kWorldSizeAttribute = "shardctl.world_size";
inline constexpr std::string_view kRankAttribute = "shardctl.rank";
inline constexpr std::string_view kMetadataPrefix = "shardctl.metadata.";

struct RootNotes {
  bool are_names_encoded = false;
  std::span<const std::byte> tree{};  ///< In the arena.
  std::optional<std::int64_t> world_size, rank;
  std::vector<std::pair<std::string, std::string>> metadata{};
};

/// The name of a rank's file: "rank-00000-of-00004.h5".
std::string rank_file_name(std::int64_t rank, std::int64_t world_size);

/// \throws Error kCorruption  one of these attributes has a different type.
RootNotes root_notes(Arena& arena, const Entry& root);

/// Whether an attribute of the root is one of these instead of an object.
bool is_root_note(std::string_view name);

// The attribute `shardctl.tree` has the container tree of a checkpoint, as far as groups cannot express it: lists and
// tuples, keys that are integers, the order of keys, classes of containers. It is a pickle. A meaningless persistent id
// replaces each tensor and object; its path gives its name. Other readers can ignore it.

inline constexpr std::string_view kTreeAttribute = "shardctl.tree";

/// The pickle for `catalog.root`; empty if groups express it completely: dicts with string keys in bytewise order.
/// `is_kept` marks, by number, objects that are elements of arrays: lists of only such objects need no tree.
std::string dump_tree(const Catalog& catalog, const std::vector<bool>& is_kept = {});

/// Builds `catalog.root` from the pickle, the bytes of the attribute (with or without kPickleMark), and gives tensors
/// and objects their paths, before they are sorted. \returns whether the tree names each tensor and object of the
/// catalog once, and no other. If it does not, because the file was changed, the catalog stays unchanged.
/// \throws Error kCorruption  it is not such a pickle
bool load_tree(Catalog& catalog, std::span<const std::byte> pickle);

}  // namespace shard::hdf5
