/// \file
/// The container tree of a checkpoint, as far as groups cannot express it: lists and tuples, keys that are integers,
/// the order of keys, classes of containers. Inside formats/hdf5 only.
///
/// It is a pickle in the root's attribute `shardctl.tree`. A meaningless persistent id replaces each tensor and object;
/// its path gives its name. Other readers can ignore it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

inline constexpr std::string_view kTreeAttribute = "shardctl.tree";

/// The pickle for `catalog.root`; empty if groups express it completely: dicts with string keys in bytewise order.
/// `is_kept` marks, by number, objects that are elements of arrays: lists of only such objects need no tree.
std::string dump_tree(const Catalog& catalog, const std::vector<bool>& is_kept = {});

/// Builds `catalog.root` from the pickle, the bytes of the attribute (with or without kPickleMark), and gives tensors
/// and objects their paths, before they are sorted. \returns whether the tree matches: it names each tensor and object
/// of the catalog once, and nothing else. If it does not, because the file was changed, the catalog stays unchanged.
/// \throws Error kCorruption  it is not such a pickle
bool load_tree(Catalog& catalog, std::span<const std::byte> pickle);

}  // namespace shard::hdf5
