#include "libshard/io/url_path.h"

#include <fmt/format.h>

#include <algorithm>

namespace shard {

namespace {

constexpr std::string_view kAfterScheme = "://";

}  // namespace

std::string_view url_scheme(std::string_view path) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  const std::size_t end = path.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+.-");
  if (end == std::string_view::npos || kLetters.find(path.front()) == std::string_view::npos) return {};
  return path.substr(end).starts_with(kAfterScheme) ? path.substr(0, end) : std::string_view();
}

std::size_t root_bytes(std::string_view path) {
  const std::string_view scheme = url_scheme(path);
  if (scheme.empty()) return path.starts_with('/') ? 1 : 0;
  std::size_t end = path.find('/', scheme.size() + kAfterScheme.size());
  if (scheme == "hf" && end != std::string_view::npos) end = path.find('/', end + 1);
  return std::min(end, path.size());
}

Error name_outside(const std::string& folder, const std::string& relative, std::string_view why) {
  return Error(ErrorCode::kCorruption,
               fmt::format("the file name '{}' points outside the checkpoint's folder", relative))
      .in_file(folder)
      .because(why);
}

std::vector<std::string> parts_below(const std::string& folder, const std::string& relative) {
  if (relative.empty() || relative.front() == '/') throw name_outside(folder, relative, "it is not a relative path");
  if (relative.find('\0') != std::string::npos) throw name_outside(folder, relative, "it contains a NUL character");
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= relative.size();) {
    const std::size_t end = std::min(relative.find('/', begin), relative.size());
    parts.push_back(relative.substr(begin, end - begin));
    if (parts.back().empty() || parts.back() == "." || parts.back() == "..") {
      throw name_outside(folder, relative, "'..', '.' and empty parts are refused");
    }
    begin = end + 1;
  }
  return parts;
}

}  // namespace shard
