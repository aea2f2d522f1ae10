#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::decoded_view {

namespace {

constexpr std::size_t kInput = 64 << 10, kBlock = 256 << 10;
constexpr std::size_t kInflater = 40 << 10;  // zlib's state and window (zlib.h, inflateInit2).
constexpr std::size_t kWindow = 8 << 20;     // Of output that is kept, so that threads may read in turns.
constexpr std::size_t kMaxPoints = 64;
constexpr std::int64_t kFirstSpacing = 1 << 20;
constexpr int kMaxZstdWindowLog = 27;
constexpr std::int64_t kMostPasses = 16, kAlwaysDecoded = 256 << 20;

Error out_of_memory(const Compressed& from) {
  return Error(ErrorCode::kResource, fmt::format("cannot decompress '{}': out of memory", from.shown))
      .in_file(from.file->name());
}

Error damaged(const Compressed& from, std::string_view what) {
  return Error(ErrorCode::kCorruption, fmt::format("'{}' {}", from.shown, what))
      .in_file(from.file->name())
      .of_kind(FindingKind::kBadHeader);
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

 private:
  const Compressed& from_;
  std::int64_t at_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;
};

/// A decoder and its place in the input.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Fills the front of `out`; 0 only at the end of the input.
  virtual std::size_t produce(std::span<std::byte> out) = 0;
  /// A decoder that goes on from here, or null where none can begin.
  virtual std::unique_ptr<Stream> copy() const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

class Inflater final : public Stream {
 public:
  explicit Inflater(const Compressed& from) : from_(from), input_(from) {
    const int window = from_.codec == Codec::kZlib ? MAX_WBITS : -MAX_WBITS;
    if (inflateInit2(&stream_, window) != Z_OK) throw out_of_memory(from_);
  }
  Inflater(const Inflater& other) : Stream(), from_(other.from_), input_(other.from_, other.input_.position()) {
    if (inflateCopy(&stream_, const_cast<z_stream*>(&other.stream_)) != Z_OK) throw out_of_memory(from_);
  }
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() override { inflateEnd(&stream_); }

  std::size_t produce(std::span<std::byte> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (!ended_ && stream_.avail_out == out.size()) {
      const std::span<const std::byte> ahead = input_.ahead();
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(ahead.data()));
      stream_.avail_in = static_cast<uInt>(ahead.size());
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      input_.take(ahead.size() - stream_.avail_in);
      if (status == Z_MEM_ERROR) throw out_of_memory(from_);
      if (status != Z_OK && status != Z_STREAM_END) throw damaged(from_, "is not a deflate stream, or is cut short");
      ended_ = status == Z_STREAM_END;
    }
    if (ended_ && !input_.ahead().empty()) throw damaged(from_, "has bytes behind its deflate stream");
    return out.size() - stream_.avail_out;
  }
  std::unique_ptr<Stream> copy() const override { return ended_ ? nullptr : std::make_unique<Inflater>(*this); }
  std::size_t memory_bytes() const override { return kInflater + kInput; }

 private:
  const Compressed& from_;
  Input input_;
  z_stream stream_{};
  bool ended_ = false;
};

class ZstdStream final : public Stream {
 public:
  explicit ZstdStream(const Compressed& from, std::int64_t at = 0)
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
  std::unique_ptr<Stream> copy() const override {
    return between_frames_ ? std::make_unique<ZstdStream>(from_, input_.position()) : nullptr;
  }
  std::size_t memory_bytes() const override { return ZSTD_sizeof_DCtx(context_.get()) + kInput; }

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

std::unique_ptr<Stream> make_stream(const Compressed& from) {
  if (from.codec == Codec::kZstd) return std::make_unique<ZstdStream>(from);
  return std::make_unique<Inflater>(from);
}

/// What a view may keep.
struct Room {
  std::size_t window = kWindow, block = kBlock, points = kMaxPoints;
};

/// A decoder that stands at a position; never moved, only copied.
struct Point {
  std::int64_t position = 0;
  std::unique_ptr<Stream> stream;
};

[[noreturn]] void fail_size(const Compressed& from, std::int64_t position) {
  throw damaged(from, "does not decompress to its size")
      .expected(from.bytes)
      .found(position > from.bytes ? fmt::format("more than {}", from.bytes) : fmt::format("{}", position));
}

/// Output is kept in a window behind the decoder; decoders are copied now and then, to begin again at the copies.
class Decompressed final : public RandomReader {
 public:
  /// `begin` is where it begins first, and where it begins again for what lies behind.
  Decompressed(std::shared_ptr<const Compressed> from, Room room, Point begin = {})
      : kept_(std::move(from)), from_(*kept_), room_(room), begin_(std::move(begin)) {
    name_ = from_.file->name();
    begin_again();
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
      if (offset < window_begin_ || offset > position_) seek(offset);
      if (offset == position_) decode_block();
      if (offset >= position_) continue;
      const std::span<const std::byte> ready =
          std::span<const std::byte>(window_).subspan(static_cast<std::size_t>(offset - window_begin_));
      const std::size_t bytes = std::min(ready.size(), out.size());
      std::ranges::copy(ready.first(bytes), out.begin());
      out = out.subspan(bytes);
      offset += static_cast<std::int64_t>(bytes);
    }
  }

 private:
  void begin_at(const Point& point) const {
    stream_ = point.stream->copy();
    position_ = window_begin_ = point.position;
    window_.clear();
  }

  void begin_again() const {
    if (begin_.stream != nullptr) return begin_at(begin_);
    begin_at_front();
  }

  void begin_at_front() const {
    stream_ = make_stream(from_);
    position_ = window_begin_ = 0;
    window_.clear();
  }

  /// Begins again at the last point before `offset` if that is nearer, then decodes until `offset` is in the window or
  /// next.
  void seek(std::int64_t offset) const {
    const auto after = std::ranges::upper_bound(points_, offset, {}, &Point::position);
    const bool has_point = after != points_.begin();
    if (has_point && (offset < window_begin_ || std::prev(after)->position > position_)) {
      begin_at(*std::prev(after));
    } else if (offset < window_begin_) {
      offset < begin_.position ? begin_at_front() : begin_again();
    }
    while (position_ < offset) decode_block();
  }

  /// After a failure the next read begins again, and fails as well.
  void decode_block() const {
    try {
      extend_window();
    } catch (...) {
      points_.clear();
      begin_again();
      throw;
    }
  }

  void extend_window() const {
    if (window_.size() + room_.block > room_.window) {
      const std::size_t dropped = window_.size() / 2;
      window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(dropped));
      window_begin_ += static_cast<std::int64_t>(dropped);
    }
    const std::size_t kept = window_.size();
    // One byte of room past the end shows an excess.
    const auto room =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(room_.block), from_.bytes - position_ + 1));
    window_.resize(kept + room);
    const std::size_t produced = stream_->produce(std::span(window_).subspan(kept));
    window_.resize(kept + produced);
    position_ += static_cast<std::int64_t>(produced);
    if (from_.on_decoded) from_.on_decoded(static_cast<std::int64_t>(produced));
    count_decoded(static_cast<std::int64_t>(produced));
    if (produced == 0 || position_ > from_.bytes) fail_size(from_, position_);
    if (position_ < from_.bytes) {
      remember();
    } else {
      check_end();
      stream_.reset();  // What is read from now on lies in the window or begins again.
    }
    count_held();
  }

  /// Readers go front to back, but views may be made to send the decoder to and fro.
  void count_decoded(std::int64_t bytes) const {
    decoded_bytes_ += bytes;
    if ((decoded_bytes_ - kAlwaysDecoded) / kMostPasses <= from_.bytes) return;
    throw Error(ErrorCode::kCorruption,
                fmt::format("cannot decompress '{}' more than {} times", from_.shown, kMostPasses))
        .in_file(from_.file->name())
        .because("its tensors lie in it to and fro, as in a file that was made to keep its readers busy")
        .hint("write the file again without compression")
        .of_kind(FindingKind::kOutOfBounds);
  }

  void count_held() const {
    std::size_t bytes = window_.capacity() + (stream_ == nullptr ? 0 : stream_->memory_bytes());
    for (const Point& point : points_) bytes += point.stream->memory_bytes();
    if (begin_.stream != nullptr) bytes += begin_.stream->memory_bytes();
    held_bytes_ = static_cast<std::int64_t>(bytes);
  }

  void check_end() const {
    std::byte more[1];
    if (stream_->produce(more) != 0) fail_size(from_, position_ + 1);
  }

  void remember() const {
    const std::int64_t last = points_.empty() ? begin_.position : points_.back().position;
    if (position_ - last < spacing_) return;
    std::unique_ptr<Stream> copy = stream_->copy();
    if (copy == nullptr) return;
    points_.push_back({position_, std::move(copy)});
    if (points_.size() < room_.points) return;
    for (std::size_t i = 0; i < points_.size() / 2; ++i) points_[i] = std::move(points_[2 * i + 1]);
    points_.resize(points_.size() / 2);
    spacing_ *= 2;
  }

  const std::shared_ptr<const Compressed> kept_;
  const Compressed& from_;
  const Room room_;
  const Point begin_;                                     ///< Without a stream: the front.
  mutable std::mutex turn_;                               ///< Of readers.
  mutable std::mutex mutex_;                              ///< Guards what follows.
  mutable std::unique_ptr<Stream> stream_;                ///< Null behind the end.
  mutable std::int64_t position_ = 0, window_begin_ = 0;  ///< The window holds what lies between.
  mutable std::vector<std::byte> window_;
  mutable std::vector<Point> points_;
  mutable std::int64_t spacing_ = kFirstSpacing;
  mutable std::int64_t decoded_bytes_ = 0;  ///< In all passes.
  mutable std::atomic<std::int64_t> held_bytes_{0};
};

}  // namespace

std::shared_ptr<const RandomReader> decompressed(Compressed from) {
  return std::make_shared<Decompressed>(std::make_shared<const Compressed>(std::move(from)), Room());
}

std::vector<std::shared_ptr<const RandomReader>> decompressed_at(Compressed from,
                                                                 std::span<const std::int64_t> begins) {
  constexpr std::size_t kLeastBlock = 64 << 10;
  const auto kept = std::make_shared<const Compressed>(std::move(from));
  const std::size_t views = std::max<std::size_t>(1, begins.size());
  const Room room{std::max(kWindow / 2 / views, 2 * kLeastBlock), kLeastBlock, std::max<std::size_t>(16 / views, 2)};
  const std::unique_ptr<Stream> stream = make_stream(*kept);
  std::vector<std::byte> block(kBlock);
  std::vector<std::shared_ptr<const RandomReader>> parts;
  for (std::int64_t position = 0;;) {
    while (parts.size() < begins.size() && begins[parts.size()] == position) {
      parts.push_back(std::make_shared<Decompressed>(kept, room, Point{position, stream->copy()}));
    }
    const std::int64_t next = parts.size() < begins.size() ? begins[parts.size()] : kept->bytes + 1;
    const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(kBlock, next - position));
    const std::size_t produced = stream->produce(std::span(block).first(wanted));
    position += static_cast<std::int64_t>(produced);
    if (kept->on_decoded) kept->on_decoded(static_cast<std::int64_t>(produced));
    if (position > kept->bytes || (produced == 0 && position < kept->bytes)) fail_size(*kept, position);
    if (produced == 0) return parts;
  }
}

void decompress_all(const Compressed& from, const std::function<void(std::span<const std::byte>)>& each) {
  const std::unique_ptr<Stream> stream = make_stream(from);
  std::vector<std::byte> block(kBlock);
  while (const std::size_t produced = stream->produce(block)) {
    if (from.on_decoded) from.on_decoded(static_cast<std::int64_t>(produced));
    each(std::span<const std::byte>(block).first(produced));
  }
}

}  // namespace shard::decoded_view
