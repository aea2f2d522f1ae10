/// \file Headers of answers, which any server may have written. Inside libshard/stores/remote only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libshard/stores/remote/http.h"

namespace shard::stores {

/// Adds a line with a header to an answer. The line of a status removes all earlier ones: that of "100 Continue".
void add_header(HttpAnswer& answer, std::string_view line);

/// The numbers of "bytes 0-9/100".
struct ContentRange {
  std::int64_t begin, end, total;  ///< `end` is the offset after the last byte.
};
/// Nothing unless 0 <= begin < end <= total.
std::optional<ContentRange> parse_content_range(std::string_view text);

/// The address in `Link: <ADDRESS>; rel="next"`; empty after the last page.
std::string next_page(std::string_view link);

}  // namespace shard::stores
