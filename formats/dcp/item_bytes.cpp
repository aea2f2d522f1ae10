#include "formats/dcp/item_bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::dcp {

namespace {

constexpr std::int64_t kFetch = 1 << 20;  // The bytes that one `fetch` loads at most.
constexpr std::int64_t kBridge = 4096;    // Gaps up to this size are read, because a second call would cost more.

}  // namespace

FetchedFile::FetchedFile(std::shared_ptr<const RandomReader> file) : file_(std::move(file)) { name_ = file_->name(); }

std::size_t FetchedFile::fetch(std::span<const Item> items, const Ends& ends) {
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
    if (item.length <= ends.front + ends.end) {
      add(item.offset, end);
    } else {
      add(item.offset, item.offset + ends.front);
      add(end - ends.end, end);
    }
  }
  if (memory_.size() < bytes) memory_.resize(bytes);
  std::vector<RangedRead> reads;
  for (const Part& part : parts_) {
    reads.push_back({part.begin, std::span(memory_).subspan(part.at, static_cast<std::size_t>(part.end - part.begin))});
  }
  file_->read_many(reads);  // A remote store fetches them at one time.
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

namespace {

constexpr std::size_t kEnd = 1 << 16;  // The number of bytes kept of each end.

std::string shown(const Item& item) { return fmt::format("the item at {}", item.offset); }

decoded_view::Compressed compressed(std::shared_ptr<const RandomReader> file, const Item& item, Arena* arena) {
  decoded_view::Compressed from{.file = std::move(file),
                                .offset = item.offset,
                                .stored_bytes = item.length,
                                .codec = decoded_view::Codec::kZstd,
                                .shown = shown(item)};
  if (arena != nullptr) from.on_decoded = [arena](std::int64_t bytes) { arena->charge(Charge::kDecoded, bytes); };
  return from;
}

}  // namespace

ZstdItem::ZstdItem(std::shared_ptr<const RandomReader> file, const Item& item, std::int64_t limit_bytes, Arena& arena)
    : file_(std::move(file)), item_(item), arena_(arena) {
  name_ = file_->name();
  decode(limit_bytes);
}

std::int64_t ZstdItem::allocated_bytes(std::int64_t, std::int64_t count) const {
  return std::min(count, file_->allocated_bytes(item_.offset, item_.length));
}

void ZstdItem::decode(std::int64_t limit_bytes) {
  const auto take = [&](std::span<const std::byte> decoded) {
    keep(decoded);
    if (bytes_ <= limit_bytes) return;
    throw Error(ErrorCode::kCorruption,
                fmt::format("{}: it decompresses to more than {} bytes", shown(item_), limit_bytes))
        .expected(limit_bytes)
        .of_kind(FindingKind::kBadHeader);
  };
  try {
    decoded_view::decompress_all(compressed(file_, item_, &arena_), take);
  } catch (Error& error) {
    if (error.why().empty()) error.because(".metadata records the transform stream.zstd/1");
    throw;
  }
}

void ZstdItem::keep(std::span<const std::byte> decoded) {
  bytes_ += static_cast<std::int64_t>(decoded.size());
  const std::size_t front = std::min(kEnd - front_.size(), decoded.size());
  front_.insert(front_.end(), decoded.begin(), decoded.begin() + static_cast<std::ptrdiff_t>(front));
  const std::size_t last = std::min(kEnd, decoded.size());
  end_.insert(end_.end(), decoded.end() - static_cast<std::ptrdiff_t>(last), decoded.end());
  if (end_.size() > kEnd) end_.erase(end_.begin(), end_.end() - static_cast<std::ptrdiff_t>(kEnd));
}

void ZstdItem::read_at(std::int64_t offset, std::span<std::byte> out) const {
  const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
  const std::int64_t end_begin = bytes_ - static_cast<std::int64_t>(end_.size());
  const auto copy = [&](const std::vector<std::byte>& kept, std::int64_t at) {
    std::copy_n(kept.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
  };
  if (offset >= 0 && end <= static_cast<std::int64_t>(front_.size())) return copy(front_, offset);
  if (offset >= end_begin && end <= bytes_) return copy(end_, offset - end_begin);
  if (whole_ == nullptr) whole_ = zstd_view(file_, item_, bytes_, &arena_);
  whole_->read_at(offset, out);
}

std::shared_ptr<const RandomReader> zstd_view(std::shared_ptr<const RandomReader> file, const Item& item,
                                              std::int64_t decoded_bytes, Arena* arena) {
  decoded_view::Compressed from = compressed(std::move(file), item, arena);
  from.bytes = decoded_bytes;
  return decoded_view::decompressed(std::move(from));
}

}  // namespace shard::dcp
