#include "formats/parts/hf_index/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::hf_index {

namespace {

constexpr std::int64_t kProbeBytes = 64 << 10;

constexpr std::string_view kJson = ".json";

/// "fp16" for model.safetensors.index.fp16.json; empty for other names.
std::string_view variant_behind(std::string_view name, std::string_view suffix) {
  const std::string_view front = suffix.substr(0, suffix.size() - kJson.size());  // ".safetensors.index"
  if (!name.ends_with(kJson)) return {};
  name.remove_suffix(kJson.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !name.substr(0, dot).ends_with(front)) return {};
  return name.substr(dot + 1);
}

/// Whether the name has no variant: nothing follows ".index", and the part before the suffix has no dot.
bool is_plain_index(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) && name.substr(0, name.size() - suffix.size()).find('.') == std::string_view::npos;
}

}  // namespace

bool is_index_name(std::string_view name, std::string_view suffix) {
  return !name.starts_with('.') && (name.ends_with(suffix) || !variant_behind(name, suffix).empty());
}

std::string choose_index(const std::string& folder, const std::vector<std::string>& names, std::string_view suffix,
                         std::string_view usual) {
  std::vector<std::string> indices;
  std::ranges::copy_if(names, std::back_inserter(indices),
                       [&](const std::string& name) { return is_index_name(name, suffix); });
  if (indices.empty()) return {};
  if (indices.size() == 1) return indices.front();
  if (std::ranges::find(indices, usual) != indices.end()) return std::string(usual);
  const auto is_plain = [&](const std::string& name) { return is_plain_index(name, suffix); };
  if (std::ranges::count_if(indices, is_plain) == 1) return *std::ranges::find_if(indices, is_plain);
  Error error(ErrorCode::kCorruption,
              fmt::format("the folder has {} indexes: {}, {}", indices.size(), indices[0], indices[1]));
  error.in_file(folder);
  for (const std::string& name : indices) error.suggest(Remedy::kReadFolder, join_path(folder, name));
  throw Error(error);
}

bool is_index_file(const RandomReader& file, std::string_view data_suffix) {
  const std::string text = front_of(file, kProbeBytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' && text.find("\"weight_map\"") != std::string::npos &&
         text.find(std::string(data_suffix) + '"') != std::string::npos;
}

}  // namespace shard::hf_index
