/// \file
/// The text of a layout document as values of JSON, whichever of two languages it is written in. Inside
/// libshard/catalog and libshard/map only.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace shard {

/// A text whose first character is '{' or '[' is JSON, any other YAML. Of YAML it reads what JSON can say: mappings,
/// lists and scalars. A plain scalar is a number, true, false or null where JSON says it so (and null where it is
/// empty), else a string: `no` and `0x10` are strings.
/// Cost: linear in the text; depth (32) and keys of one object (256) are bounded.
/// \throws Error kInvalidArgument  neither language, naming the line; a key that stands twice in one object; too
///   deep or too many keys; anchors, aliases, tags, several documents.
nlohmann::ordered_json parse_document_text(std::string_view text);

}  // namespace shard
