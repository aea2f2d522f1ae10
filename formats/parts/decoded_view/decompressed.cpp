#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/decoded_view/lzf_stream.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::decoded_view {

namespace {

/// Decodes compressed bytes front to back. Threads: one at a time.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Fills the front of `out`. \returns the number of bytes, 0 only at the end of the input. \pre out is not empty
  /// \throws Error  see decompressed()
  virtual std::size_t produce(std::span<std::byte> out) = 0;
  /// A second decoder with the same state, or null if the state cannot be copied here.
  virtual std::unique_ptr<Decoder> copy() const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

/// An error about the compressed bytes, of kind bad_header unless the caller changes it.
Error damaged(const Compressed& from, std::string_view what) {
  return Error(ErrorCode::kCorruption, fmt::format("'{}' {}", from.shown, what))
      .in_file(from.file->name())
      .of_kind(FindingKind::kBadHeader);
}

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
  /// The bytes that were read and not consumed. Reads more if there are none. Empty at the end.
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

/// A plain copy of ISA-L's inflate_state is valid, because its only pointers are those to input and output.
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
      throw damaged(from_, "has bytes after its deflate stream");
    }
    return out.size() - state_.avail_out;
  }
  std::unique_ptr<Decoder> copy() const override { return ended_ ? nullptr : std::make_unique<Inflater>(*this); }
  std::size_t memory_bytes() const override { return sizeof(*this) + input_.memory_bytes(); }

 private:
  /// Decodes once. A call that neither consumes nor produces a byte is an error, because the next would do so again.
  void step() {
    const std::span<const std::byte> ahead = input_.ahead();
    const std::uint32_t room = state_.avail_out;
    state_.next_in = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(ahead.data()));
    state_.avail_in = static_cast<std::uint32_t>(ahead.size());
    const int status = isal_inflate(&state_);
    ended_ = state_.block_state == ISAL_BLOCK_FINISH;
    const bool is_stuck = !ended_ && state_.avail_in == ahead.size() && state_.avail_out == room;
    if (status == ISAL_DECOMP_OK && is_stuck && ahead.empty()) {
      throw damaged(from_, "is truncated inside its deflate stream").of_kind(FindingKind::kTruncated);
    }
    if (status != ISAL_DECOMP_OK || is_stuck) throw damaged(from_, "is not a deflate stream");
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

  /// Stops at the end of a frame, so that the state may be copied there.
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
        throw damaged(from_, "is truncated inside a zstd frame").of_kind(FindingKind::kTruncated);
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
      if (!made) throw damaged(from_, "is not an LZF stream: it repeats bytes from before its start");
      input_.take(ahead.size() - rest.size());
      if (*made > 0) return *made;
      if (!ahead.empty()) continue;
      if (stream_.may_end()) return 0;
      throw damaged(from_, "is truncated inside its LZF stream").of_kind(FindingKind::kTruncated);
    }
  }
  std::unique_ptr<Decoder> copy() const override { return std::make_unique<LzfDecoder>(*this); }
  std::size_t memory_bytes() const override { return sizeof(*this) + input_.memory_bytes(); }

 private:
  const Compressed& from_;
  Input input_;
  LzfStream stream_;
};

/// Ownership: `from` must outlive the decoder and its copies.
std::unique_ptr<Decoder> make_decoder(const Compressed& from) {
  if (from.codec == Codec::kLzf) return std::make_unique<LzfDecoder>(from);
  if (from.codec == Codec::kZstd) return std::make_unique<ZstdDecoder>(from);
  return std::make_unique<Inflater>(from);
}

constexpr std::size_t kBlock = 256 << 10;
constexpr std::size_t kWindowBlocks = 32;
constexpr std::size_t kMaxPoints = 32;
constexpr std::int64_t kFirstSpacing = 1 << 20;
constexpr std::int64_t kMostPasses = 16, kAlwaysDecoded = 256 << 20;

/// The limits of one view: bytes per block of the window, number of blocks, number of copied decoders.
struct Room {
  std::size_t block = kBlock, blocks = kWindowBlocks, points = kMaxPoints;
};

/// A copy of the decoder at a position. It never advances; it is only copied.
struct Point {
  std::int64_t position = 0;
  std::unique_ptr<Decoder> stream;
};

[[noreturn]] void fail_size(const Compressed& from, std::int64_t decoded) {
  throw damaged(from, "does not decompress to its size")
      .expected(from.bytes)
      .found(decoded > from.bytes ? fmt::format("more than {}", from.bytes) : fmt::format("{}", decoded));
}

/// The last bytes of the output, so that threads may read in turns. All blocks but the last are full.
class Window {
 public:
  Window(std::size_t block_bytes, std::size_t most_blocks) : block_bytes_(block_bytes), most_blocks_(most_blocks) {}
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  void restart(std::int64_t at) {
    blocks_.clear();
    begin_ = end_ = at;
  }
  /// Free room after the end. The oldest block may be dropped to make it. Never empty.
  std::span<std::byte> room() {
    if (static_cast<std::int64_t>(memory_bytes()) == end_ - begin_) add_block();
    const std::size_t used = static_cast<std::size_t>(end_ - begin_) % block_bytes_;
    return {blocks_.back().get() + used, block_bytes_ - used};
  }
  /// Appends the first bytes of the room to the window.
  void extend(std::size_t bytes) { end_ += static_cast<std::int64_t>(bytes); }
  /// The consecutive bytes from `offset` on. \pre begin() <= offset < end()
  std::span<const std::byte> from(std::int64_t offset) const {
    const auto at = static_cast<std::size_t>(offset - begin_), skipped = at % block_bytes_;
    return {blocks_[at / block_bytes_].get() + skipped,
            std::min(block_bytes_ - skipped, static_cast<std::size_t>(end_ - offset))};
  }
  std::size_t memory_bytes() const { return blocks_.size() * block_bytes_; }

 private:
  using Block = std::unique_ptr<std::byte[]>;

  void add_block() {
    Block block;
    if (blocks_.size() == most_blocks_) {
      block = std::move(blocks_.front());
      blocks_.pop_front();
      begin_ += static_cast<std::int64_t>(block_bytes_);
    } else {
      block = std::make_unique_for_overwrite<std::byte[]>(block_bytes_);
    }
    blocks_.push_back(std::move(block));
  }

  const std::size_t block_bytes_, most_blocks_;
  std::deque<Block> blocks_;
  std::int64_t begin_ = 0, end_ = 0;
};

/// Keeps the decoder's last output in a window. Copies the decoder now and then, so that it can restart from a copy.
class Decompressed final : public RandomReader {
 public:
  /// `begin` is the first state of the decoder, and the one from which it restarts. Without one it starts at the front.
  Decompressed(std::shared_ptr<const Compressed> from, const Room& room, Point begin = {})
      : kept_(std::move(from)),
        from_(*kept_),
        most_points_(room.points),
        begin_(std::move(begin)),
        window_(room.block, room.blocks) {
    name_ = from_.file->name();
    begin_again(begin_.position);
  }
  std::int64_t size() const override { return from_.bytes; }
  std::unique_lock<std::mutex> turn() const override { return std::unique_lock(turn_); }
  std::int64_t held_bytes() const override { return held_bytes_; }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || checked_add(offset, static_cast<std::int64_t>(out.size())) > from_.bytes) {
      throw damaged(from_, fmt::format("is shorter than {} bytes", offset + static_cast<std::int64_t>(out.size())))
          .found(from_.bytes)
          .of_kind(FindingKind::kTruncated);
    }
    const std::scoped_lock lock(mutex_);
    while (!out.empty()) {
      if (offset < window_.begin() || offset > window_.end()) seek(offset);
      if (offset == window_.end()) decode_block();
      if (offset >= window_.end()) continue;
      const std::span<const std::byte> ready = window_.from(offset);
      const std::size_t bytes = std::min(ready.size(), out.size());
      std::memcpy(out.data(), ready.data(), bytes);
      out = out.subspan(bytes);
      offset += static_cast<std::int64_t>(bytes);
    }
  }

 private:
  /// Restarts the decoder at the last point before `offset`.
  void begin_again(std::int64_t offset) const {
    const auto after = std::ranges::upper_bound(points_, offset, {}, &Point::position);
    const Point& point = after != points_.begin() ? *std::prev(after) : begin_;
    const bool is_before = point.stream != nullptr && point.position <= offset;
    stream_ = is_before ? point.stream->copy() : make_decoder(from_);
    window_.restart(is_before ? point.position : 0);
  }

  /// Restarts at the last point before `offset` if that is nearer, then decodes until `offset` is in the window or is
  /// the next byte.
  void seek(std::int64_t offset) const {
    const auto after = std::ranges::upper_bound(points_, offset, {}, &Point::position);
    const bool has_point = after != points_.begin();
    if (offset < window_.begin() || (has_point && std::prev(after)->position > window_.end())) begin_again(offset);
    while (window_.end() < offset) decode_block();
  }

  /// After a failure the next read restarts and fails again.
  void decode_block() const {
    try {
      extend_window();
    } catch (...) {
      points_.clear();
      begin_again(begin_.position);
      throw;
    }
  }

  void extend_window() const {
    std::span<std::byte> room = window_.room();
    // One byte of room past the end reveals an excess.
    const std::int64_t most = from_.bytes - window_.end() + 1;
    if (static_cast<std::int64_t>(room.size()) > most) room = room.first(static_cast<std::size_t>(most));
    const std::size_t produced = stream_->produce(room);
    window_.extend(produced);
    if (from_.on_decoded) from_.on_decoded(static_cast<std::int64_t>(produced));
    count_decoded(static_cast<std::int64_t>(produced));
    if (produced == 0 || window_.end() > from_.bytes) fail_size(from_, window_.end());
    if (window_.end() < from_.bytes) {
      remember();
    } else {
      check_end();
      stream_.reset();  // Later reads are served from the window, or restart the decoder.
    }
    count_held();
  }

  /// Readers usually go front to back, but a file may be built to make the decoder jump back and forth.
  void count_decoded(std::int64_t bytes) const {
    decoded_bytes_ += bytes;
    if ((decoded_bytes_ - kAlwaysDecoded) / kMostPasses <= from_.bytes) return;
    throw Error(ErrorCode::kCorruption,
                fmt::format("cannot decompress '{}' more than {} times", from_.shown, kMostPasses))
        .in_file(from_.file->name())
        .because("its tensors jump back and forth in the stream, as in a file built to exhaust a reader's time")
        .hint("write the file again without compression")
        .of_kind(FindingKind::kOutOfBounds);
  }

  void count_held() const {
    std::size_t bytes = window_.memory_bytes() + (stream_ == nullptr ? 0 : stream_->memory_bytes());
    for (const Point& point : points_) bytes += point.stream->memory_bytes();
    if (begin_.stream != nullptr) bytes += begin_.stream->memory_bytes();
    held_bytes_ = static_cast<std::int64_t>(bytes);
  }

  void check_end() const {
    std::byte more[1];
    if (stream_->produce(more) != 0) fail_size(from_, from_.bytes + 1);
  }

  void remember() const {
    const std::int64_t last = points_.empty() ? begin_.position : points_.back().position;
    if (window_.end() - last < spacing_) return;
    std::unique_ptr<Decoder> copy = stream_->copy();
    if (copy == nullptr) return;
    points_.push_back({window_.end(), std::move(copy)});
    if (points_.size() < most_points_) return;
    for (std::size_t i = 0; i < points_.size() / 2; ++i) points_[i] = std::move(points_[2 * i + 1]);
    points_.resize(points_.size() / 2);
    spacing_ *= 2;
  }

  const std::shared_ptr<const Compressed> kept_;
  const Compressed& from_;
  const std::size_t most_points_;
  const Point begin_;
  mutable std::mutex turn_;                  ///< Lets readers take turns.
  mutable std::mutex mutex_;                 ///< Guards the following members.
  mutable std::unique_ptr<Decoder> stream_;  ///< Null after the end.
  mutable Window window_;                    ///< Its end is the decoder's position.
  mutable std::vector<Point> points_;
  mutable std::int64_t spacing_ = kFirstSpacing;
  mutable std::int64_t decoded_bytes_ = 0;  ///< The total of all passes.
  mutable std::atomic<std::int64_t> held_bytes_{0};
};

}  // namespace

std::shared_ptr<const RandomReader> decompressed(Compressed from) {
  return std::make_shared<Decompressed>(std::make_shared<const Compressed>(std::move(from)), Room());
}

std::vector<std::shared_ptr<const RandomReader>> decompressed_at(Compressed from,
                                                                 std::span<const std::int64_t> begins) {
  constexpr std::size_t kSmallBlock = 64 << 10, kMostHeld = 4 << 20;
  const auto kept = std::make_shared<const Compressed>(std::move(from));
  const std::size_t views = std::max<std::size_t>(1, begins.size());
  const Room room{.block = kSmallBlock,
                  .blocks = std::max<std::size_t>(kMostHeld / kSmallBlock / views, 2),
                  .points = std::max<std::size_t>(kMaxPoints / 2 / views, 2)};
  const std::unique_ptr<Decoder> stream = make_decoder(*kept);
  std::vector<std::byte> block(kBlock);
  std::vector<std::shared_ptr<const RandomReader>> parts;
  for (std::int64_t position = 0;;) {
    while (parts.size() < begins.size() && begins[parts.size()] == position) {
      parts.push_back(std::make_shared<Decompressed>(kept, room, Point{position, stream->copy()}));
    }
    const std::int64_t next = parts.size() < begins.size() ? begins[parts.size()] : kept->bytes + 1;
    const auto wanted = static_cast<std::size_t>(std::min(static_cast<std::int64_t>(kBlock), next - position));
    const std::size_t produced = stream->produce(std::span(block).first(wanted));
    position += static_cast<std::int64_t>(produced);
    if (kept->on_decoded) kept->on_decoded(static_cast<std::int64_t>(produced));
    if (position > kept->bytes || (produced == 0 && position < kept->bytes)) fail_size(*kept, position);
    if (produced == 0) return parts;
  }
}

void decompress_all(const Compressed& from, const std::function<void(std::span<const std::byte>)>& each) {
  const std::unique_ptr<Decoder> stream = make_decoder(from);
  std::vector<std::byte> block(kBlock);
  while (const std::size_t produced = stream->produce(block)) {
    if (from.on_decoded) from.on_decoded(static_cast<std::int64_t>(produced));
    each(std::span<const std::byte>(block).first(produced));
  }
}

}  // namespace shard::decoded_view
