/// \file Parses the text of a document, which is JSON or YAML, into JSON values. Inside libshard/map only.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace shard {

/// Parses a document. A text whose first character is '{' or '[' is JSON. Any other text is YAML. In YAML, only JSON's
/// features are allowed: mappings, lists and scalars. A plain scalar is a number, true, false or null if JSON would
/// read it so (and null if it is empty), otherwise a string: `no` and `0x10` are strings. Cost: linear in the text
/// (JsonBuilder). Depth (32), keys of one object (256) and `max_values` have limits.
/// \throws Error kInvalidArgument  neither language, naming the line; a repeated key in one object; too deep; too many
///   keys or values, or too many for the text's length; anchors, aliases, tags, several documents.
nlohmann::ordered_json parse_document_text(std::string_view text, std::size_t max_values);

/// The limit for a map. Its values become rules, expressions and templates, which need 200 bytes each.
inline constexpr std::size_t kMaxMapValues = 1 << 19;
/// The limit for a layout document, which may have a rule for each tensor.
inline constexpr std::size_t kMaxLayoutValues = 1 << 22;

}  // namespace shard
