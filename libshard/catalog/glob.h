/// \file
/// Globs over dotted names.
#pragma once

#include <string_view>

namespace shard {

/// Whether `glob` matches the whole `name`: `*` stays inside one dotted part, `**` crosses, `?` is one character
/// other than a dot, `[...]` a class (`[!...]` what is not in it, a dot never). Bytewise. Cost: O(|glob| * |name|).
bool glob_match(std::string_view glob, std::string_view name);

}  // namespace shard
