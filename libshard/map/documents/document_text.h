/// \file
/// The text of a document as values of JSON, whichever of two languages it is written in. Inside libshard/map only.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace shard {

/// A text whose first character is '{' or '[' is JSON, any other YAML. Of YAML it reads what JSON can say: mappings,
/// lists and scalars. A plain scalar is a number, true, false or null where JSON says it so (and null where it is
/// empty), else a string: `no` and `0x10` are strings.
/// Cost: linear in the text (JsonBuilder); depth (32), keys of one object (256) and `max_values` in all are bounded.
/// \throws Error kInvalidArgument  neither language, naming the line; a key that stands twice in one object; too
///   deep, too many keys or values, or too many for the text's length; anchors, aliases, tags, several documents.
nlohmann::ordered_json parse_document_text(std::string_view text, std::size_t max_values);

/// Of a map: its values become rules, expressions and templates, which take 200 bytes each.
inline constexpr std::size_t kMaxMapValues = 1 << 19;
/// Of a layout document, which may have a rule for each tensor.
inline constexpr std::size_t kMaxLayoutValues = 1 << 22;

}  // namespace shard
