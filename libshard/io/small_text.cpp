#include "libshard/io/small_text.h"

#include <algorithm>
#include <memory>
#include <span>

namespace shard {

std::string front_of(const RandomReader& file, std::int64_t bytes) {
  std::string front(static_cast<std::size_t>(std::min(file.size(), bytes)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(front)));
  return front;
}

std::string whole_text(const RandomReader& file, std::int64_t limit_bytes) {
  check_file_size(file, limit_bytes);
  return front_of(file, limit_bytes);
}

std::string small_text(const SourceStore& store, const std::string& path, std::int64_t limit_bytes) {
  if (!store.is_file(path)) return {};
  const std::unique_ptr<RandomReader> file = store.open(path);
  if (file->size() > limit_bytes) return {};
  std::string text = front_of(*file, limit_bytes);
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

}  // namespace shard
