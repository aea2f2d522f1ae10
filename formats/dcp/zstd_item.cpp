#include "formats/dcp/zstd_item.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/error.h"

namespace shard::dcp {
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
    if (error.why().empty()) error.because(".metadata says that it went through stream.zstd/1");
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
