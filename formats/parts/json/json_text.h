/// \file
/// Texts as JSON strings.
#pragma once

#include <string>
#include <string_view>

namespace shard::json {

/// Appends `text` as a JSON string. `ascii` escapes all that is not ASCII, as Python's json does.
/// \throws nlohmann::json::exception  it is not UTF-8.
void append_string(std::string& out, std::string_view text, bool ascii);

}  // namespace shard::json
