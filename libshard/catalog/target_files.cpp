#include "libshard/catalog/target_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/plural.h"

namespace shard {

namespace {

Error too_few(const std::string& message, std::int64_t number) {
  return Error(ErrorCode::kInvalidArgument, message).expected("at least 1").found(number);
}

/// Each file ends where the bytes so far come nearest to its share of all, and holds at least one unit.
std::vector<std::uint32_t> balanced(std::int64_t shards, std::span<const std::int64_t> bytes) {
  if (shards < 1) throw too_few(fmt::format("cannot spread tensors over {}", plural(shards, "file")), shards);
  const auto units = static_cast<std::int64_t>(bytes.size());
  const std::int64_t files = std::min(shards, units);
  std::int64_t total = 0;
  for (const std::int64_t each : bytes) total = checked_add(total, each);
  std::vector<std::uint32_t> assigned(bytes.size());
  std::int64_t unit = 0, sum = 0;
  for (std::int64_t file = 0; file < files; ++file) {
    const std::int64_t share_end = begin_of_share(total, file + 1, files);
    const std::int64_t last = units - (files - 1 - file);  // The others need one each.
    const auto nearer = [&] { return share_end - sum > bytes[static_cast<std::size_t>(unit)] / 2; };
    for (bool is_first = true; unit < last && (is_first || file == files - 1 || nearer()); ++unit) {
      assigned[static_cast<std::size_t>(unit)] = static_cast<std::uint32_t>(file);
      sum += bytes[static_cast<std::size_t>(unit)];
      is_first = false;
    }
  }
  return assigned;
}

std::vector<std::uint32_t> greedy(std::int64_t limit, std::span<const std::int64_t> bytes) {
  if (limit < 1) throw too_few(fmt::format("cannot limit files to {} bytes", limit), limit);
  std::vector<std::uint32_t> assigned(bytes.size());
  std::vector<std::size_t> current;
  std::int64_t current_bytes = 0;
  std::uint32_t files = 0;
  const auto close = [&] {
    for (const std::size_t unit : current) assigned[unit] = files;
    files += current.empty() ? 0 : 1;
    current.clear();
    current_bytes = 0;
  };
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    if (bytes[unit] > limit) {
      assigned[unit] = files++;
      continue;
    }
    if (bytes[unit] > limit - current_bytes) close();
    current.push_back(unit);
    current_bytes += bytes[unit];
  }
  close();
  return assigned;
}

}  // namespace

std::vector<std::uint32_t> assign_files(const Layout& layout, std::span<const std::int64_t> bytes) {
  if (const auto* shards = std::get_if<ShardsLayout>(&layout)) return balanced(shards->shards, bytes);
  if (const auto* size = std::get_if<SizeLayout>(&layout)) return greedy(size->bytes, bytes);
  return std::vector<std::uint32_t>(bytes.size());
}

}  // namespace shard
