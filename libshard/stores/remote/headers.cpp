#include "libshard/stores/remote/headers.h"

#include "libshard/core/ascii.h"
#include "libshard/core/parse_number.h"

namespace shard::stores {

void add_header(HttpAnswer& answer, std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) answer.headers.clear();  // An answer before was "100 Continue".
  const std::size_t colon = line.find(':');
  if (line.starts_with("HTTP/") || colon == std::string_view::npos) return;
  std::string_view value = line.substr(colon + 1);
  while (value.starts_with(' ')) value.remove_prefix(1);
  answer.headers[lower_case(std::string(line.substr(0, colon)))] = value;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const auto first = take_natural(text);
  if (!first || !text.starts_with('-')) return std::nullopt;
  text.remove_prefix(1);
  const auto last = take_natural(text);
  if (!last || !text.starts_with('/')) return std::nullopt;
  const auto total = parse_natural(text.substr(1));
  if (!total || *last < *first || *last >= *total) return std::nullopt;
  return ContentRange{*first, *last + 1, *total};
}

std::string next_page(std::string_view link) {
  const std::size_t begin = link.find('<'), end = link.find('>');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return {};
  if (link.substr(end).find("rel=\"next\"") == std::string_view::npos) return {};
  return std::string(link.substr(begin + 1, end - begin - 1));
}

}  // namespace shard::stores
