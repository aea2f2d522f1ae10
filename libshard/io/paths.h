/// \file
/// Path arithmetic without the disk.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shard {

std::string join_path(std::string_view folder, std::string_view name);
std::string base_name(std::string_view path);    ///< For example "b" for "/a/b" and for "/a/b/".
std::string parent_path(std::string_view path);  ///< For example "/a" for "/a/b"; "." if there is none.

/// A file's path as shown to the user who named `sources`: the path in a source's folder, the last component of a
/// source itself, any other path unchanged.
std::string shown_from(std::span<const std::string> sources, const std::string& file);

}  // namespace shard
