#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>

#include "libshard/catalog/layout.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

/// RE2 for exactly this name.
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

std::string json_text(std::string_view text) {
  try {
    return nlohmann::json(text).dump(-1, ' ', true);
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kUnsupported, "cannot name a tensor in a layout document: its name is not valid UTF-8")
        .of_tensor(text)
        .suggest(Remedy::kRename, text);
  }
}

/// The list of cuts, slowest axis first; axes that hold replicas are left out.
std::string shard_text(std::span<const MeshAxis> mesh, std::span<const Placement> placements) {
  std::string text;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (placement.kind == Placement::kReplicate) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{{\"axis\": {}, \"dim\": {}", json_text(mesh[axis].name), placement.dim);
    if (placement.kind == Placement::kStridedShard)
      text += fmt::format(", \"split_factor\": {}", placement.split_factor);
    if (placement.split != CutRule::kChunk) text += fmt::format(", \"split\": \"{}\"", to_string(placement.split));
    if (!placement.ends.empty()) text += fmt::format(", \"widths\": [{}]", fmt::join(widths_of(placement), ", "));
    text += '}';
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
  std::string text = "{\n  \"schema\": \"shardctl.layout/1\",\n  \"mesh\": {";
  for (std::string_view separator = ""; const MeshAxis& axis : mesh) {
    text += fmt::format("{}{}: {}", separator, json_text(axis.name), axis.size);
    separator = ", ";
  }
  text += fmt::format("}},\n  \"files\": {{\"path\": {}}},\n  \"rules\": [", json_text(file_path));
  for (std::string_view separator = "\n"; const auto& [shard, pattern] : pattern_of) {
    text += fmt::format("{}    {{\"match\": {}, \"shard\": [{}]}}", separator, json_text(pattern), shard);
    separator = ",\n";
  }
  return text + (pattern_of.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace shard
