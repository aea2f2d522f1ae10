#include "libshard/map/file_names.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/map/wrong.h"

namespace shard {

namespace {

constexpr std::string_view kRank = "rank";

/// What a field stands for on a rank.
std::string value_of_field(const ModelMap& map, const std::string& name, std::int64_t rank) {
  const std::vector<MapMeshAxis>& axes = map.document().mesh;
  const auto axis = std::ranges::find(axes, name, &MapMeshAxis::name);
  if (axis != axes.end()) {
    return std::to_string(map.coordinate_of(rank)[static_cast<std::size_t>(axis - axes.begin())]);
  }
  if (name == kRank) return std::to_string(rank);
  if (const MapValue* const value = map.variables().find(name)) return text_of(*value);
  const auto is_variable =
      std::ranges::find(map.document().vars, name, &MapVariable::name) != map.document().vars.end();
  if (is_variable) throw map.variables().missing(name);
  throw wrong(fmt::format("files.path names '{}', which is neither an axis of the mesh nor a variable", name))
      .found(name);
}

std::string name_of_rank_file(const ModelMap& map, std::int64_t rank) {
  static const RE2 field(R"(([^{}]*)\{([A-Za-z_][A-Za-z_0-9]*)(?::0([1-9])d)?\})");
  re2::StringPiece rest(map.document().file_path);
  std::string name, text, variable, width;
  while (RE2::Consume(&rest, field, &text, &variable, &width)) {
    std::string value = value_of_field(map, variable, rank);
    const std::size_t digits = width.empty() ? 0 : static_cast<std::size_t>(width.front() - '0');
    if (value.size() < digits) value.insert(0, digits - value.size(), '0');
    name += text + value;
  }
  name.append(rest.data(), rest.size());
  if (name.find_first_of("{}") != std::string::npos) {
    throw wrong("files.path is not a name with fields such as {tp} or {tp:02d}").found(map.document().file_path);
  }
  return name;
}

}  // namespace

std::vector<std::string> rank_file_names(const ModelMap& map) {
  std::vector<std::string> names;
  for (std::int64_t rank = 0; rank < map.ranks(); ++rank) {
    names.push_back(map.document().file_path.empty() ? fmt::format("rank-{:05}-of-{:05}.pt", rank, map.ranks())
                                                     : name_of_rank_file(map, rank));
    if (names.back().find('/') != std::string::npos) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("cannot name a rank's file '{}': folders are not supported", names.back()));
    }
    if (names.back().empty() || names.back().starts_with('.') || names.back().find('\0') != std::string::npos) {
      throw wrong(fmt::format("files.path gives rank {} a name that cannot be a file's", rank)).found(names.back());
    }
  }
  std::set<std::string_view> different(names.begin(), names.end());
  if (different.size() == names.size()) return names;
  throw wrong("files.path gives two ranks one name").found(map.document().file_path);
}

}  // namespace shard
