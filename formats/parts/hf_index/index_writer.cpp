#include "formats/parts/hf_index/index_writer.h"

#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/utf8.h"

namespace shard::hf_index {

std::string dump_index(std::int64_t total_bytes, std::span<const IndexEntry> entries) {
  std::string text;
  JsonWriter json(text, kPythonJson);
  json.begin_object();
  json.line(2);
  json.key("metadata"), json.begin_object();
  json.line(4);
  json.key("total_size"), json.number(total_bytes);
  json.end_line(2);
  json.end_object();
  json.line(2);
  json.key("weight_map"), json.begin_object();
  for (const IndexEntry& entry : entries) {
    if (!is_utf8(entry.tensor) || !is_utf8(entry.file)) {
      throw Error(ErrorCode::kUnsupported, "cannot write an index: a tensor's name is not valid UTF-8")
          .of_tensor(entry.tensor)
          .suggest(Remedy::kRename, entry.tensor);
    }
    json.line(4);
    json.member_name(entry.tensor), json.string(entry.file);
  }
  if (!entries.empty()) json.end_line(2);
  json.end_object();
  json.end_line();
  json.end_object();
  json.end_line();
  return text;
}

}  // namespace shard::hf_index
