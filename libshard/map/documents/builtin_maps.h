/// \file
/// The built-in maps: documents of the folder maps/, embedded when the library is built.
#pragma once

#include <span>
#include <string_view>

namespace shard {

struct BuiltinMap {
  std::string_view name;  ///< The document's `name`.
  std::string_view text;  ///< The document.
};

/// By name.
std::span<const BuiltinMap> builtin_maps();
/// The map of that name, or null.
const BuiltinMap* find_builtin_map(std::string_view name);

}  // namespace shard
