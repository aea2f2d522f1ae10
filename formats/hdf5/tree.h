/// \file
/// The container tree of a checkpoint in a file of groups: what groups alone do not say (lists and tuples, keys that
/// are integers, the order of keys, classes of containers). Inside formats/hdf5 only.
///
/// It is a pickle in the root's attribute `shardctl.tree`, in which a persistent id of no meaning stands in the place
/// of each tensor and object: the way to it gives its name. Readers other than ours need not know of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

inline constexpr std::string_view kTreeAttribute = "shardctl.tree";

/// The pickle for `catalog.root`; empty if groups say all of it: dicts with string keys in bytewise order. `is_kept`
/// marks objects that are elements of arrays, by number: the lists that hold nothing else need no tree.
std::string dump_tree(const Catalog& catalog, const std::vector<bool>& is_kept = {});

/// Makes `catalog.root` of the pickle, the bytes of the attribute (with or without kPickleMark), and gives tensors and
/// objects their paths, before they are sorted. \returns whether the tree fits: it names each tensor and object of the
/// catalog once, and nothing else. Where it does not
///   (someone changed the file), the catalog stays as it was.
/// \throws Error kCorruption  not such a pickle
bool load_tree(Catalog& catalog, std::span<const std::byte> pickle);

}  // namespace shard::hdf5
