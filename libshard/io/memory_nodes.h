/// \file
/// What a disk in memory consists of. Inside libshard/io only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct Node {
  bool is_folder = false;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  ///< A count of all changes.
  std::vector<std::byte> content;
  std::map<std::string, NodePtr> entries;
  std::weak_ptr<void> lock;
};

/// The parts of a path with "." and ".." resolved as text.
inline std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == ".." && !parts.empty()) parts.pop_back();
    if (!part.empty() && part != "." && part != "..") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

inline std::string normal(const std::string& path) {
  std::string text;
  for (const std::string& part : parts_of(path)) text += '/' + part;
  return text.empty() ? "/" : text;
}

inline FileStatus status_from(const NodePtr& node) {
  if (node == nullptr) return {};
  return {node->is_folder ? FileKind::kFolder : FileKind::kFile,
          static_cast<std::int64_t>(node->content.size()),
          1,
          node->inode,
          0,
          node->modified_ns};
}

inline std::vector<std::string> names_in(const Node& folder) {
  std::vector<std::string> names;
  for (const auto& entry : folder.entries) names.push_back(entry.first);
  return names;
}

}  // namespace shard
