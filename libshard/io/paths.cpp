#include "libshard/io/paths.h"

#include <algorithm>

#include "libshard/io/url_path.h"

namespace shard {

namespace {

/// Removes trailing slashes, but a root stays.
std::string_view without_slashes(std::string_view path) {
  const std::size_t root = std::max<std::size_t>(root_bytes(path), 1);
  while (path.size() > root && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty() || (!name.empty() && name.front() == '/')) return std::string(name);
  std::string joined(without_slashes(folder));
  if (joined.back() != '/') joined += '/';
  return joined.append(name);
}

std::string base_name(std::string_view path) {
  path = without_slashes(path);
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos || path.size() == 1 ? path : path.substr(slash + 1));
}

std::string parent_path(std::string_view path) {
  path = without_slashes(path);
  const std::size_t slash = path.rfind('/'), root = root_bytes(path);
  if (slash == std::string_view::npos) return ".";
  return std::string(without_slashes(path.substr(0, std::max(slash, root))));
}

std::string shown_from(std::span<const std::string> sources, const std::string& file) {
  for (const std::string& source : sources) {
    if (file == source) return base_name(source);
    const std::string folder = join_path(source, "");
    if (file.starts_with(folder) && file.size() > folder.size()) return file.substr(folder.size());
  }
  return file;
}

}  // namespace shard
