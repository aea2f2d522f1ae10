/// \file
/// The container tree of a checkpoint: walking it leaf by leaf, pruning it to a selection, rebuilding it from paths.
///
/// A tree may be a DAG and, in a hostile file, a cycle (see value.h): every walk is bounded by kMaxValueDepth and ends
/// with Error kCorruption beyond it. A shared node is walked under each of its names: visit_leaves, through which every
/// reader goes first, charges the source's budget for them, so that later walks over the same tree end as well.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"

namespace shard {

/// A tensor, an object or an empty container, and the way to it.
struct TreeLeaf {
  Value* value;
  Path path;              ///< Full, also when it equals the single key `name`. Its parts lie in the arena.
  std::string_view name;  ///< The path joined by '.', unescaped. In the arena.
};

/// Calls `visit` for every leaf under `root`, in the tree's order, depth first. Mappings, lists and tuples are
/// descended; leaves are values for which `is_leaf` is true, scalars, sets, calls that do not make a mapping, and empty
/// containers. Keys that are neither string nor integer go by their text ("True", "1.5", "(1, 2)"). A root that is
/// itself a leaf has the empty name and path. A node that is shared is visited under each of its names, and
/// the arena's budget pays for every one.
/// \throws Error kCorruption  too deep, the budget is spent, or a name of more than 16 MiB.
void visit_leaves(Arena& arena, Value& root, const std::function<bool(const Value&)>& is_leaf,
                  const std::function<void(const TreeLeaf&)>& visit);

/// A copy of a leaf's name, which is charged for what it has past kShortName.
std::string_view copy_name(Arena& arena, std::string_view name);

/// str() of a mapping's key, as torch makes names of it: "3", "None", "1.5", "(1, 2)", "torch.float32", "cuda:1"; long
/// ones are clipped, and of keys of other types it is the type's name.
std::string text_of_key(const Value& key);

/// `full`, or nothing when it is one string key that equals `name`. The key "" stays: the empty name with no path is
/// the root itself.
Path compact_path(Path full, std::string_view name);

/// A leaf's new path and value in a pruned or rebuilt tree.
struct TreeEntry {
  std::string_view name;
  Path path;                        ///< Compact or full.
  std::uint32_t tensor = kNoIndex;  ///< The number that its kTensor value shall have; kNoIndex for an object.
  Value* object = nullptr;          ///< Where `tensor` is kNoIndex.
};

/// The tree under `root` with only the leaves of `entries`, found by name and path; kTensor values get their entry's
/// number. Containers in which nothing changed are shared with `root`; changed ones are copied. Containers that become
/// empty are removed; an empty root becomes an empty dict. A list that lost an element other than its last ones becomes
/// a dict with integer keys, so that names stay. \pre `root`'s kTensor values are leaves of a catalog. Ownership: the
/// result lies in `arena` and in that of `root`. Cost: linear in leaves. \throws Error kCorruption  too deep.
Value* prune_tree(Arena& arena, Value& root, std::span<const TreeEntry> entries);

/// A tree made of paths alone. Dicts hold string keys in bytewise order, then integer keys by value; list indices that
/// run from 0 become a list, others integer keys. A single entry of the empty name and path is the root itself.
/// \throws Error kInvalidArgument  two entries with one path, or one inside another, naming both.
Value* tree_of_paths(Arena& arena, std::span<const TreeEntry> entries);

}  // namespace shard
