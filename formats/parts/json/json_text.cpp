#include "formats/parts/json/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shard::json {

void append_string(std::string& out, std::string_view text, bool ascii) {
  const auto is_plain = [ascii](char c) { return c >= ' ' && c != '"' && c != '\\' && !(ascii && c == 0x7F); };
  if (std::ranges::all_of(text, is_plain)) {  // Nearly always; a negative char is not a plain one.
    out.append("\"").append(text).append("\"");
  } else {
    out += nlohmann::json(text).dump(-1, ' ', ascii);
  }
}

}  // namespace shard::json
