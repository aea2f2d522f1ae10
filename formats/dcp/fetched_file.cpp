#include "formats/dcp/fetched_file.h"

#include <algorithm>

#include "libshard/core/checked.h"

namespace shard::dcp {
namespace {

constexpr std::int64_t kWholeItem = 8192;  // Items up to this size are loaded whole.
constexpr std::int64_t kWindow = 4096;     // The bytes loaded from the front and from the end of a larger item.
constexpr std::int64_t kFetch = 1 << 20;   // The bytes that one `fetch` loads at most.
constexpr std::int64_t kBridge = 4096;     // Gaps up to this size are read, because a second call would cost more.

}  // namespace

FetchedFile::FetchedFile(std::shared_ptr<const RandomReader> file) : file_(std::move(file)) { name_ = file_->name(); }

std::size_t FetchedFile::fetch(std::span<const Item> items) {
  parts_.clear();
  std::size_t bytes = 0, taken = 0;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (!parts_.empty() && begin - parts_.back().end <= kBridge) {
      const std::int64_t more = std::max<std::int64_t>(0, end - parts_.back().end);
      parts_.back().end += more;
      bytes += static_cast<std::size_t>(more);
    } else {
      parts_.push_back({begin, end, bytes});
      bytes += static_cast<std::size_t>(end - begin);
    }
  };
  while (taken < items.size() && (taken == 0 || bytes < static_cast<std::size_t>(kFetch))) {
    const Item& item = items[taken++];
    const std::int64_t end = checked_add(item.offset, item.length);
    if (item.length <= kWholeItem) {
      add(item.offset, end);
    } else {
      add(item.offset, item.offset + kWindow);
      add(end - kWindow, end);
    }
  }
  if (memory_.size() < bytes) memory_.resize(bytes);
  for (const Part& part : parts_) {
    file_->read_at(part.begin, std::span(memory_).subspan(part.at, static_cast<std::size_t>(part.end - part.begin)));
  }
  return taken;
}

std::span<const std::byte> FetchedFile::view(std::int64_t offset, std::int64_t bytes) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                      [](std::int64_t wanted, const Part& part) { return wanted < part.begin; });
  if (after == parts_.begin()) return {};
  const Part& part = *(after - 1);
  if (offset + bytes > part.end) return {};
  return std::span(memory_).subspan(part.at + static_cast<std::size_t>(offset - part.begin),
                                    static_cast<std::size_t>(bytes));
}

void FetchedFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  const std::span<const std::byte> found = view(offset, static_cast<std::int64_t>(out.size()));
  if (found.size() == out.size()) {
    std::copy(found.begin(), found.end(), out.begin());
  } else {
    file_->read_at(offset, out);
  }
}

}  // namespace shard::dcp
