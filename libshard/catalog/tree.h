/// \file The container tree of a checkpoint: visiting its leaves, pruning it to a selection, rebuilding it from paths.
///
/// A tree may be a DAG and, in a hostile file, a cycle (see value.h). So every walk is limited to kMaxValueDepth and
/// ends with Error kCorruption beyond it. A shared node is visited under each of its names. Every reader calls
/// visit_leaves first, which charges them to the source's budget, so later walks over the same tree are bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// A tensor, an object or an empty container, and its path.
struct TreeLeaf {
  Value* value;
  Path path;              ///< The full path, even if it equals the single key `name`. Its parts are in the arena.
  std::string_view name;  ///< The path joined by '.', without escapes. In the arena.
};

/// Calls `visit` for every leaf under `root`, depth first in the tree's order. Mappings, lists and tuples are inner
/// nodes. Leaves are values for which `is_leaf` is true, scalars, sets, calls that do not create a mapping, and empty
/// containers. A key that is neither a string nor an integer is represented by its text ("True", "1.5", "(1, 2)"). A
/// root that is itself a leaf has the empty name and path. A shared node is visited under each of its names, and each
/// visit is charged to the arena's budget.
/// \throws Error kCorruption  too deep, the budget is spent, or a name of more than 16 MiB.
void visit_leaves(Arena& arena, Value& root, const std::function<bool(const Value&)>& is_leaf,
                  const std::function<void(const TreeLeaf&)>& visit);

/// Copies a leaf's name. The part beyond kShortName is charged.
std::string_view copy_name(Arena& arena, std::string_view name);

/// The str() of a mapping's key, which torch uses in names: "3", "None", "1.5", "(1, 2)", "torch.float32", "cuda:1".
/// Long texts are clipped. For keys of other types, the result is the type's name.
std::string text_of_key(const Value& key);

/// `full`, or nothing if it is one string key that equals `name`. The key "" is kept, because the empty name without a
/// path is the root itself.
Path compact_path(Path full, std::string_view name);

/// A leaf's new path and value in a pruned or rebuilt tree.
struct TreeEntry {
  std::string_view name;
  Path path;                        ///< Compact or full.
  std::uint32_t tensor = kNoIndex;  ///< The number for its kTensor value; kNoIndex for an object.
  Value* object = nullptr;          ///< Set if `tensor` is kNoIndex.
  bool keeps_call = true;           ///< A call around the tensor, which makes it a Parameter, stays around it.
};

/// The tree under `root` reduced to the leaves in `entries`, which are found by name and path. kTensor values receive
/// their entry's number. Unchanged containers are shared with `root`, and changed ones are copied. Containers that
/// become empty are removed, except the root, which becomes an empty dict. A list that lost an element other than its
/// last ones becomes a dict with integer keys, so that names stay. \pre `root`'s kTensor values are leaves of a
/// catalog. Ownership: the result is in `arena` and in that of `root`. Cost: linear in leaves.
/// \throws Error kCorruption  too deep.
Value* prune_tree(Arena& arena, Value& root, std::span<const TreeEntry> entries);

/// Builds a tree from paths. Dicts have string keys in bytewise order, then integer keys by value. List indices that
/// run from 0 become a list, others integer keys. A single entry with the empty name and path is the root itself.
/// \throws Error kInvalidArgument  two entries with one path, or one inside the other; the message names both.
Value* tree_of_paths(Arena& arena, std::span<const TreeEntry> entries);

// For other visits of container trees: children of containers, keys as path parts, the position of a visit.

/// Whether a path may lead through the value: a mapping, list or tuple.
bool is_container(const Value& value);
/// Key-value pairs of a mapping, elements of a list or tuple.
std::span<Value*> container_items(const Value& value);
/// A dict key as a path part. The text of a key that is not a string is allocated in `arena`.
PathPart key_part(Arena& arena, const Value& key);
inline PathPart index_part(std::size_t index) { return PathPart::of_index(static_cast<std::int64_t>(index)); }

/// The path and name of the node that is being visited. \throws Error kCorruption  from push: too deep.
class TreePosition {
 public:
  void push(const PathPart& part);
  void pop();
  const std::vector<PathPart>& parts() const { return parts_; }
  std::string_view name() const { return name_; }

 private:
  std::vector<PathPart> parts_;
  std::vector<std::size_t> lengths_;
  std::string name_;
};

}  // namespace shard
