/// \file
/// Path arithmetic without the disk.
#pragma once

#include <string>
#include <string_view>

namespace shard {

std::string join_path(std::string_view folder, std::string_view name);
std::string base_name(std::string_view path);    ///< "b" for "/a/b" and for "/a/b/".
std::string parent_path(std::string_view path);  ///< "/a" for "/a/b"; "." where there is none.

}  // namespace shard
