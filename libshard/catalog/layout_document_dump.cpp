#include <map>
#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/layout.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/utf8.h"

namespace shard {

namespace {

/// Appends an RE2 pattern that matches exactly this name.
void append_quoted(std::string& pattern, std::string_view name) {
  for (const char c : name) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (c == '\0') {
      pattern += "\\x00";
    } else if (is_word || static_cast<unsigned char>(c) >= 0x80) {
      pattern += c;
    } else {
      pattern += {'\\', c};
    }
  }
}

std::string_view checked(std::string_view text) {
  if (is_utf8(text)) return text;
  throw Error(ErrorCode::kUnsupported, "cannot name a tensor in a layout document: its name is not valid UTF-8")
      .of_tensor(text)
      .suggest(Remedy::kRename, text);
}

/// The items of the list of cuts, slowest axis first, without the axes of replicas.
std::string shard_text(std::span<const MeshAxis> mesh, std::span<const Placement> placements) {
  std::string text;
  JsonWriter json(text, kPythonJson);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (placement.kind == Placement::kReplicate) continue;
    json.begin_object();
    json.key("axis"), json.string(checked(mesh[axis].name));
    json.key("dim"), json.number(placement.dim);
    if (placement.kind == Placement::kStridedShard) json.key("split_factor"), json.number(placement.split_factor);
    if (placement.split != CutRule::kChunk) json.key("split"), json.string(to_string(placement.split));
    if (!placement.ends.empty()) json.key("widths"), json.numbers(widths_of(placement));
    json.end_object();
  }
  return text;
}

}  // namespace

std::string dump_layout_document(const std::string& file_path, std::span<const MeshAxis> mesh,
                                 std::span<const PlacedName> names) {
  std::map<std::string, std::string> pattern_of;  // By the text of the cuts.
  for (const PlacedName& each : names) {
    const std::string shard = shard_text(mesh, each.placements);
    if (shard.empty()) continue;
    const auto [entry, is_new] = pattern_of.try_emplace(shard);
    if (!is_new) entry->second += '|';
    append_quoted(entry->second, each.name);
  }
  std::string text;
  JsonWriter json(text, kPythonJson);
  json.begin_object();
  json.line(2);
  json.key("schema"), json.string("shardctl.layout/1");
  json.line(2);
  json.key("mesh"), json.begin_object();
  for (const MeshAxis& axis : mesh) json.member_name(checked(axis.name)), json.number(axis.size);
  json.end_object();
  json.line(2);
  json.key("files"), json.begin_object();
  json.key("path"), json.string(checked(file_path));
  json.end_object();
  json.line(2);
  json.key("rules"), json.begin_array();
  for (const auto& [shard, pattern] : pattern_of) {
    json.line(4);
    json.begin_object();
    json.key("match"), json.string(checked(pattern));
    json.key("shard"), json.begin_array(), json.literal(shard), json.end_array();
    json.end_object();
  }
  if (!pattern_of.empty()) json.end_line(2);
  json.end_array();
  json.end_line();
  json.end_object();
  json.end_line();
  return text;
}

}  // namespace shard
