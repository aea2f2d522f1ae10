#include "formats/megatron_tracker.h"

#include <fmt/format.h>

#include <charconv>
#include <span>

#include "libshard/io/paths.h"

namespace shard {

std::string tracked_iteration(const SourceStore& store, const std::string& folder) {
  constexpr std::int64_t kMaxBytes = 64;
  const std::string path = join_path(folder, kTrackerName);
  if (store.status(path).kind != FileKind::kFile) return {};
  const auto file = store.open(path);
  if (file->size() > kMaxBytes) return {};
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text == "release") return text;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return is_number ? fmt::format("iter_{:07}", number) : std::string();
}

}  // namespace shard
