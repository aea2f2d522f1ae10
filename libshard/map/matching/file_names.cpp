#include "libshard/map/matching/file_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/split.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

/// The text of a field on a rank.
std::string value_of_field(const ModelMap& map, const std::string& name, std::int64_t rank) {
  const std::vector<MapMeshAxis>& axes = map.document().mesh;
  const auto axis = std::ranges::find(axes, name, &MapMeshAxis::name);
  if (axis != axes.end()) {
    return std::to_string(map.coordinate_of(rank)[static_cast<std::size_t>(axis - axes.begin())]);
  }
  if (name == kRankField) return std::to_string(rank);
  if (const MapValue* const value = map.variables().find(name)) return text_of(*value);
  const auto is_variable =
      std::ranges::find(map.document().vars, name, &MapVariable::name) != map.document().vars.end();
  if (is_variable) throw map.variables().missing(name);
  throw wrong(fmt::format("files.path names '{}', which is neither an axis of the mesh nor a variable", name))
      .found(name);
}

/// Whether this is a relative path without hidden names or control characters.
bool is_file_name(std::string_view name) {
  constexpr unsigned char kFirstPlain = 0x20, kDelete = 0x7f;
  const auto is_control = [](unsigned char c) { return c < kFirstPlain || c == kDelete; };
  if (std::ranges::any_of(name, is_control)) return false;
  const auto is_hidden = [](std::string_view part) { return part.empty() || part.starts_with('.'); };
  return std::ranges::none_of(split(name, '/'), is_hidden);
}

const MapFiles* written_files(const MapDocument& document) {
  if (document.files.empty()) return nullptr;
  const MapFiles& files = document.files.front();
  if (document.files.size() == 1 && files.writer.empty()) return &files;
  throw Error(ErrorCode::kUnsupported,
              "cannot write per-rank files of which some contain only a part of a rank's tensors")
      .because("the map's files are a list, or have a writer: such files are only read");
}

}  // namespace

NamePattern parse_file_name(const std::string& path) {
  const auto is_field = [](const NamePattern::Part& part) {
    return part.field.empty() || (!is_digit(part.field.front()) && is_alphanumeric(part.field, "_"));
  };
  std::optional<NamePattern> pattern = NamePattern::parse(path);
  if (pattern && std::ranges::all_of(pattern->parts(), is_field)) return *std::move(pattern);
  throw wrong("files.path is not a name with fields such as {tp} or {tp:02d}").found(path);
}

std::vector<std::string> rank_file_names(const ModelMap& map) {
  const MapFiles* const files = written_files(map.document());
  const NamePattern pattern = parse_file_name(files == nullptr ? std::string() : files->path);
  std::vector<std::string> names;
  for (std::int64_t rank = 0; rank < map.ranks(); ++rank) {
    std::string name = files == nullptr ? fmt::format("rank-{:05}-of-{:05}.pt", rank, map.ranks()) : std::string();
    for (const NamePattern::Part& part : pattern.parts()) {
      name += part.text;
      if (!part.field.empty()) name += part.padded(value_of_field(map, part.field, rank));
    }
    if (!is_file_name(name))
      throw wrong(fmt::format("files.path gives rank {} a name that cannot be a file's", rank)).found(name);
    names.push_back(std::move(name));
  }
  std::set<std::string_view> different(names.begin(), names.end());
  if (different.size() == names.size()) return names;
  throw wrong("files.path gives two ranks one name").found(files->path);
}

}  // namespace shard
