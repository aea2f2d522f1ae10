#include "formats/parts/hf_index/index_writer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "formats/parts/json/json_text.h"
#include "libshard/core/error.h"

namespace shard::hf_index {

std::string dump_index(std::int64_t total_bytes, std::span<const IndexEntry> entries) {
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  const char* separator = "\n    ";
  for (const IndexEntry& entry : entries) try {
      text += std::exchange(separator, ",\n    ");
      json::append_string(text, entry.tensor, true);
      text += ": ";
      json::append_string(text, entry.file, true);
    } catch (const nlohmann::json::exception&) {
      throw Error(ErrorCode::kUnsupported, "cannot write an index: a tensor's name is not valid UTF-8")
          .of_tensor(entry.tensor)
          .suggest(Remedy::kRename, entry.tensor);
    }
  return text += entries.empty() ? "}\n}\n" : "\n  }\n}\n";
}

}  // namespace shard::hf_index
