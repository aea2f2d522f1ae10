/// \file Helpers for visiting container trees: children of containers, keys as path parts, the position of a visit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

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
