/// \file
/// Path arithmetic without the disk.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shard {

std::string join_path(std::string_view folder, std::string_view name);
std::string base_name(std::string_view path);    ///< "b" for "/a/b" and for "/a/b/".
std::string parent_path(std::string_view path);  ///< "/a" for "/a/b"; "." where there is none.

/// A file as people know it who named `sources`: what follows a source's folder, a source itself by its last component,
/// any other as it is.
std::string shown_from(std::span<const std::string> sources, const std::string& file);

}  // namespace shard
