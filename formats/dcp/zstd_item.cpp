#include "formats/dcp/zstd_item.h"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>

#include "formats/decode/decode.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

constexpr std::size_t kEnd = 1 << 16;   // As much of each end is kept,
constexpr std::size_t kStep = 1 << 17;  // and this much is read and decoded at a time.
constexpr int kWindowLog = 27;
constexpr std::int64_t kAlwaysDecoded = std::int64_t{1} << 32, kDecodedRatio = 64;
constexpr std::int64_t kMostStored = std::int64_t{1} << 56;  // More times the ratio does not fit 63 bits.

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

Error bad_stream(const Item& item, std::string_view what) {
  return Error(ErrorCode::kCorruption, fmt::format("the item at {}: {}", item.offset, what))
      .because(".metadata says that it went through stream.zstd/1")
      .of_kind("bad_header");
}

[[noreturn]] void throw_zstd_error(const Item& item, std::size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
    throw Error(ErrorCode::kUnsupported, "the item's zstd stream needs a window of more than 128 MiB");
  }
  throw bad_stream(item, fmt::format("no zstd stream ({})", ZSTD_getErrorName(result)));
}

}  // namespace

ZstdAllowance::ZstdAllowance(std::int64_t stored_bytes)
    : all_(kAlwaysDecoded + kDecodedRatio * std::min(stored_bytes, kMostStored)), left_(all_) {}

void ZstdAllowance::take(std::int64_t decoded_bytes) {
  left_ -= std::min(left_, decoded_bytes);
  if (left_ > 0) return;
  throw Error(ErrorCode::kCorruption, fmt::format("the zstd items decode to more than {} bytes", all_))
      .because("no values of a model shrink so well: the checkpoint was made to keep its readers busy")
      .of_kind("bad_header");
}

ZstdItem::ZstdItem(std::shared_ptr<const RandomReader> file, const Item& item, std::int64_t limit_bytes,
                   ZstdAllowance& allowance)
    : file_(std::move(file)), item_(item), allowance_(allowance) {
  name_ = file_->name();
  decode(limit_bytes);
}

void ZstdItem::decode(std::int64_t limit_bytes) {
  const std::unique_ptr<ZSTD_DStream, FreeStream> stream(ZSTD_createDStream());
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, kWindowLog);
  std::vector<std::byte> stored(kStep), decoded(kStep);
  std::size_t rest = 1;  // Of the current frame: 0 where one has just ended.
  for (std::int64_t at = 0; at < item_.length;) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::int64_t>(kStep, item_.length - at));
    file_->read_at(item_.offset + at, std::span(stored).first(count));
    at += static_cast<std::int64_t>(count);
    ZSTD_inBuffer in{stored.data(), count, 0};
    for (bool is_full = false; in.pos < in.size || is_full;) {
      ZSTD_outBuffer out{decoded.data(), decoded.size(), 0};
      rest = ZSTD_decompressStream(stream.get(), &out, &in);
      if (ZSTD_isError(rest) != 0) throw_zstd_error(item_, rest);
      is_full = out.pos == out.size && rest != 0;  // More may be ready that the input does not show.
      keep(std::span<const std::byte>(decoded).first(out.pos));
      if (bytes_ > limit_bytes) {
        throw bad_stream(item_, fmt::format("more than {} bytes come out of it", limit_bytes)).expected(limit_bytes);
      }
      allowance_.take(static_cast<std::int64_t>(out.pos));
    }
  }
  if (rest != 0) throw bad_stream(item_, "the zstd stream is cut short").of_kind("truncated");
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
  if (whole_ == nullptr) whole_ = zstd_view(file_, item_, bytes_, &allowance_);
  whole_->read_at(offset, out);
}

std::shared_ptr<const RandomReader> zstd_view(std::shared_ptr<const RandomReader> file, const Item& item,
                                              std::int64_t decoded_bytes, ZstdAllowance* allowance) {
  decode::Compressed from{.file = std::move(file),
                          .offset = item.offset,
                          .stored_bytes = item.length,
                          .bytes = decoded_bytes,
                          .codec = decode::Codec::kZstd,
                          .shown = fmt::format("the item at {}", item.offset)};
  if (allowance != nullptr) from.on_decoded = [allowance](std::int64_t bytes) { allowance->take(bytes); };
  return decode::decompressed(std::move(from));
}

}  // namespace shard::dcp
