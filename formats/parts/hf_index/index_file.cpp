#include "formats/parts/hf_index/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "libshard/core/error.h"

namespace shard::hf_index {

namespace {

constexpr std::int64_t kProbeBytes = 64 << 10;

}  // namespace

bool is_index_name(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) && !name.starts_with('.');
}

std::string choose_index(const std::string& folder, const std::vector<std::string>& names, std::string_view suffix,
                         std::string_view usual) {
  std::vector<std::string> indices;
  std::ranges::copy_if(names, std::back_inserter(indices),
                       [&](const std::string& name) { return is_index_name(name, suffix); });
  if (indices.empty()) return {};
  if (indices.size() == 1) return indices.front();
  if (std::ranges::find(indices, usual) != indices.end()) return std::string(usual);
  throw Error(ErrorCode::kCorruption,
              fmt::format("the folder has {} indices: {}, {}", indices.size(), indices[0], indices[1]))
      .in_file(folder)
      .hint("name the index file itself as the source");
}

bool is_index_file(const RandomReader& file, std::string_view data_suffix) {
  std::string text(static_cast<std::size_t>(std::min(file.size(), kProbeBytes)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' && text.find("\"weight_map\"") != std::string::npos &&
         text.find(std::string(data_suffix) + '"') != std::string::npos;
}

}  // namespace shard::hf_index
