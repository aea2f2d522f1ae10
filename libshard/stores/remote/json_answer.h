/// \file JSON documents of servers. Inside libshard/stores/remote only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shard::stores {

/// The document of an answer; null if it is not JSON, or would need far more memory than its text (parse_json).
nlohmann::json parse_answer(std::string_view text);
/// The text of a member; empty if it is missing or not a string.
std::string text_in(const nlohmann::json& document, const char* name);

/// The names of files in an index of weights, sorted; empty if it is not one. Memory: the names.
std::vector<std::string> files_in_index(std::string_view json);

}  // namespace shard::stores
