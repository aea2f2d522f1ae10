#include "formats/parts/decoded_view/decoder.h"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "formats/parts/decoded_view/lzf_stream.h"

namespace shard::decoded_view {

Error damaged(const Compressed& from, std::string_view what) {
  return Error(ErrorCode::kCorruption, fmt::format("'{}' {}", from.shown, what))
      .in_file(from.file->name())
      .of_kind(FindingKind::kBadHeader);
}

namespace {

constexpr std::size_t kInput = 64 << 10;
constexpr int kMaxZstdWindowLog = 27;

Error out_of_memory(const Compressed& from) {
  return Error(ErrorCode::kResource, fmt::format("cannot decompress '{}': out of memory", from.shown))
      .in_file(from.file->name());
}

/// The compressed bytes, read front to back.
class Input {
 public:
  explicit Input(const Compressed& from, std::int64_t at = 0) : from_(from), at_(at) {}
  /// The bytes that are read and not taken; more of them if there were none. Empty at the end.
  std::span<const std::byte> ahead() {
    if (rest_.empty() && at_ < from_.stored_bytes) {
      buffer_.resize(static_cast<std::size_t>(std::min<std::int64_t>(kInput, from_.stored_bytes - at_)));
      from_.file->read_at(from_.offset + at_, buffer_);
      at_ += static_cast<std::int64_t>(buffer_.size());
      rest_ = buffer_;
    }
    return rest_;
  }
  void take(std::size_t bytes) { rest_ = rest_.subspan(bytes); }
  std::int64_t position() const { return at_ - static_cast<std::int64_t>(rest_.size()); }
  std::size_t memory_bytes() const { return buffer_.capacity(); }

 private:
  const Compressed& from_;
  std::int64_t at_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;
};

/// ISA-L's inflate_state has no pointers but those to input and output, so that it is copied as it is.
class Inflater final : public Decoder {
 public:
  explicit Inflater(const Compressed& from) : from_(from), input_(from) {
    isal_inflate_init(&state_);
    if (from.codec == Codec::kZlib) state_.crc_flag = ISAL_ZLIB;
  }
  Inflater(const Inflater& other)
      : Decoder(), from_(other.from_), input_(other.from_, other.input_.position()), state_(other.state_) {}
  Inflater& operator=(const Inflater&) = delete;

  std::size_t produce(std::span<std::byte> out) override {
    state_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    state_.avail_out = static_cast<std::uint32_t>(out.size());
    while (!ended_ && state_.avail_out == out.size()) step();
    if (ended_ && (state_.read_in_length >= 8 || !input_.ahead().empty())) {
      throw damaged(from_, "has bytes behind its deflate stream");
    }
    return out.size() - state_.avail_out;
  }
  std::unique_ptr<Decoder> copy() const override { return ended_ ? nullptr : std::make_unique<Inflater>(*this); }
  std::size_t memory_bytes() const override { return sizeof(*this) + input_.memory_bytes(); }

 private:
  /// A call that neither takes nor makes a byte will never do so.
  void step() {
    const std::span<const std::byte> ahead = input_.ahead();
    const std::uint32_t room = state_.avail_out;
    state_.next_in = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(ahead.data()));
    state_.avail_in = static_cast<std::uint32_t>(ahead.size());
    const int status = isal_inflate(&state_);
    ended_ = state_.block_state == ISAL_BLOCK_FINISH;
    const bool is_stuck = !ended_ && state_.avail_in == ahead.size() && state_.avail_out == room;
    if (status != ISAL_DECOMP_OK || is_stuck) throw damaged(from_, "is not a deflate stream, or is cut short");
    input_.take(ahead.size() - state_.avail_in);
  }

  const Compressed& from_;
  Input input_;
  inflate_state state_;
  bool ended_ = false;
};

class ZstdDecoder final : public Decoder {
 public:
  explicit ZstdDecoder(const Compressed& from, std::int64_t at = 0)
      : from_(from), input_(from, at), context_(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    if (context_ == nullptr) throw out_of_memory(from_);
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxZstdWindowLog);
  }

  /// Ends at the end of a frame, so that a copy may be made there.
  std::size_t produce(std::span<std::byte> out) override {
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    while (target.pos == 0) {
      const std::span<const std::byte> ahead = input_.ahead();
      if (ahead.empty() && between_frames_) return 0;
      ZSTD_inBuffer source{ahead.data(), ahead.size(), 0};
      const std::size_t status = ZSTD_decompressStream(context_.get(), &target, &source);
      check(status);
      input_.take(source.pos);
      if (ahead.empty() && target.pos == 0) {
        throw damaged(from_, "is cut short inside a zstd frame").of_kind(FindingKind::kTruncated);
      }
      between_frames_ = status == 0;
    }
    return target.pos;
  }
  std::unique_ptr<Decoder> copy() const override {
    return between_frames_ ? std::make_unique<ZstdDecoder>(from_, input_.position()) : nullptr;
  }
  std::size_t memory_bytes() const override { return ZSTD_sizeof_DCtx(context_.get()) + input_.memory_bytes(); }

 private:
  void check(std::size_t status) const {
    if (ZSTD_isError(status) == 0) return;
    if (ZSTD_getErrorCode(status) == ZSTD_error_memory_allocation) throw out_of_memory(from_);
    if (ZSTD_getErrorCode(status) == ZSTD_error_frameParameter_windowTooLarge) {
      throw Error(ErrorCode::kUnsupported, fmt::format("'{}' needs a zstd window above 128 MiB", from_.shown))
          .in_file(from_.file->name());
    }
    throw damaged(from_, fmt::format("is not a zstd stream: {}", ZSTD_getErrorName(status)));
  }

  const Compressed& from_;
  Input input_;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context_;
  bool between_frames_ = true;
};

class LzfDecoder final : public Decoder {
 public:
  explicit LzfDecoder(const Compressed& from) : from_(from), input_(from) {}
  LzfDecoder(const LzfDecoder& other)
      : Decoder(), from_(other.from_), input_(other.from_, other.input_.position()), stream_(other.stream_) {}
  LzfDecoder& operator=(const LzfDecoder&) = delete;

  std::size_t produce(std::span<std::byte> out) override {
    while (true) {
      const std::span<const std::byte> ahead = input_.ahead();
      std::span<const std::byte> rest = ahead;
      const std::optional<std::size_t> made = stream_.decode(rest, out);
      if (!made) throw damaged(from_, "is not an LZF stream: it repeats bytes from before its begin");
      input_.take(ahead.size() - rest.size());
      if (*made > 0) return *made;
      if (!ahead.empty()) continue;
      if (stream_.may_end()) return 0;
      throw damaged(from_, "is cut short inside its LZF stream").of_kind(FindingKind::kTruncated);
    }
  }
  std::unique_ptr<Decoder> copy() const override { return std::make_unique<LzfDecoder>(*this); }
  std::size_t memory_bytes() const override { return sizeof(*this) + input_.memory_bytes(); }

 private:
  const Compressed& from_;
  Input input_;
  LzfStream stream_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Compressed& from) {
  if (from.codec == Codec::kLzf) return std::make_unique<LzfDecoder>(from);
  if (from.codec == Codec::kZstd) return std::make_unique<ZstdDecoder>(from);
  return std::make_unique<Inflater>(from);
}

}  // namespace shard::decoded_view
