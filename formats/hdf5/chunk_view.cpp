#include "formats/hdf5/chunk_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "formats/hdf5/chunk_filters.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

/// Decoded by the first read, then kept.
class SmallChunk final : public RandomReader {
 public:
  explicit SmallChunk(const FilteredChunk& chunk) : chunk_(chunk) { name_ = chunk.file->name(); }
  std::int64_t size() const override { return chunk_.bytes; }
  /// Counted from the start, because a view is made to be read.
  std::int64_t held_bytes() const override { return chunk_.bytes; }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    decoded_view::check_within(offset, out.size(), chunk_.bytes, name_);
    std::call_once(decoded_, [this] { decode(); });
    std::copy_n(bytes_.span().data() + offset, out.size(), out.data());
  }

 private:
  void decode() const try {
    const std::vector<FilterStep> steps = steps_to_undo(chunk_.filters, chunk_.place, chunk_.bytes, chunk_.shown);
    Bytes stored(chunk_.place.bytes);
    chunk_.file->read_at(chunk_.place.offset, stored.span());
    bytes_ = undo(steps, std::move(stored), chunk_.shown);
  } catch (Error& error) {
    error.in_file(name_);
    throw;
  }

  const FilteredChunk chunk_;
  mutable std::once_flag decoded_;
  mutable Bytes bytes_;
};

class Constant final : public RandomReader {
 public:
  Constant(std::span<const std::byte> fill, std::int64_t bytes, std::string name)
      : fill_(fill.begin(), fill.end()), bytes_(bytes) {
    if (std::ranges::all_of(fill_, [&](std::byte each) { return each == fill_.front(); })) fill_.resize(1);
    name_ = std::move(name);
  }
  std::int64_t size() const override { return bytes_; }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    decoded_view::check_within(offset, out.size(), bytes_, name_);
    if (fill_.size() == 1) {
      std::ranges::fill(out, fill_.front());
      return;
    }
    const auto skipped = static_cast<std::size_t>(offset) % fill_.size();
    std::size_t done = std::min(out.size(), fill_.size());
    for (std::size_t i = 0; i < done; ++i) out[i] = fill_[(skipped + i) % fill_.size()];
    while (done < out.size()) {  // Copies the finished part after itself, which doubles it each time.
      const std::size_t more = std::min(done, out.size() - done);
      std::memcpy(out.data() + done, out.data(), more);
      done += more;
    }
  }

 private:
  std::vector<std::byte> fill_;  ///< A single zero if none was given.
  std::int64_t bytes_;
};

using Input = std::shared_ptr<const RandomReader>;
using decoded_view::check_within;
using decoded_view::Compressed;

constexpr std::size_t kBlock = 256 << 10;  // An even number, which Fletcher32::add requires.
constexpr std::uint32_t kMostPlanes = 64;

/// The data before a fletcher32 checksum, after the checksum was compared.
class Checked final : public RandomReader {
 public:
  Checked(Input input, std::string shown) : input_(std::move(input)), shown_(std::move(shown)) {
    name_ = input_->name();
  }
  std::int64_t size() const override { return input_->size() - kFletcherBytes; }
  std::int64_t held_bytes() const override { return input_->held_bytes(); }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    std::call_once(compared_, [this] { compare(); });
    check_within(offset, out.size(), size(), name_);
    input_->read_at(offset, out);
  }

 private:
  void compare() const {
    Fletcher32 sum;
    Bytes block(kBlock);
    for (std::int64_t at = 0; at < size(); at += static_cast<std::int64_t>(kBlock)) {
      const auto bytes = static_cast<std::size_t>(std::min<std::int64_t>(kBlock, size() - at));
      input_->read_at(at, block.span().first(bytes));
      sum.add(block.span().first(bytes));
    }
    const std::span<std::byte> stored = block.span().first(kFletcherBytes);
    input_->read_at(size(), stored);
    sum.check(stored, shown_);
  }

  Input input_;
  std::string shown_;
  mutable std::once_flag compared_;
};

/// Shows elements whose byte planes are consecutive in `planes[0]`. `planes[k]` has the same bytes and is the fastest
/// to read plane k.
class Unshuffled final : public RandomReader {
 public:
  Unshuffled(std::vector<Input> planes, std::int64_t bytes)
      : planes_(std::move(planes)),
        width_(static_cast<std::int64_t>(planes_.size())),
        count_(bytes / width_),
        bytes_(bytes) {
    name_ = planes_.front()->name();
  }
  std::int64_t size() const override { return bytes_; }
  std::int64_t held_bytes() const override {
    std::int64_t held = 0;
    for (std::size_t k = 0; k < planes_.size() && (k == 0 || planes_[k] != planes_[0]); ++k) {
      held += planes_[k]->held_bytes();
    }
    return held;
  }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    check_within(offset, out.size(), bytes_, name_);
    const std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kBlock) / width_);
    Bytes planes, elements;
    while (!out.empty() && offset < count_ * width_) {
      const std::int64_t first = offset / width_;
      const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
      const std::int64_t last = std::min({count_, first + most, (end + width_ - 1) / width_});
      const auto bytes = static_cast<std::size_t>((last - first) * width_);
      if (planes.size() < bytes) planes = Bytes(bytes), elements = Bytes(bytes);
      read_elements(first, last, planes.span().first(bytes), elements.span().first(bytes));
      const auto skipped = static_cast<std::size_t>(offset - first * width_);
      const std::size_t taken = std::min(out.size(), bytes - skipped);
      std::copy_n(elements.span().data() + skipped, taken, out.data());
      out = out.subspan(taken);
      offset += static_cast<std::int64_t>(taken);
    }
    if (!out.empty()) planes_.back()->read_at(offset, out);
  }

 private:
  void read_elements(std::int64_t first, std::int64_t last, std::span<std::byte> planes,
                     std::span<std::byte> elements) const {
    const auto run = static_cast<std::size_t>(last - first);
    for (std::size_t k = 0; k < planes_.size(); ++k) {
      planes_[k]->read_at(static_cast<std::int64_t>(k) * count_ + first, planes.subspan(k * run, run));
    }
    unshuffle(planes, planes_.size(), elements);
  }

  std::vector<Input> planes_;
  std::int64_t width_, count_, bytes_;
};

/// The view after some filters were undone.
struct Stage {
  Input bytes;
  std::optional<Compressed> stream{};  ///< The compressed range that decodes to `bytes`, if there is one.
};

std::int64_t count_bytes(const Compressed& from, const ByteCount& most) {
  std::int64_t bytes = 0;
  decoded_view::decompress_all(from, [&](std::span<const std::byte> block) {
    bytes += static_cast<std::int64_t>(block.size());
    if (bytes <= most.bytes) return;
    throw Error(ErrorCode::kCorruption, fmt::format("cannot decode {}", from.shown))
        .because("its compressed stream has more bytes than a compressed chunk can have")
        .of_kind(FindingKind::kBadHeader);
  });
  return bytes;
}

Stage decompressed(const Stage& stage, const FilterStep& step, decoded_view::Codec codec, const std::string& shown) {
  Compressed from{.file = stage.bytes,
                  .offset = 0,
                  .stored_bytes = stage.bytes->size(),
                  .bytes = step.out.bytes,
                  .codec = codec,
                  .shown = shown};
  if (!step.out.is_exact) from.bytes = count_bytes(from, step.out);
  return {decoded_view::decompressed(from), from};
}

Stage checked_sum(const Stage& stage, const std::string& shown) {
  if (stage.bytes->size() < kFletcherBytes) {
    throw Error(ErrorCode::kCorruption, fmt::format("cannot decode {}", shown))
        .because("it is shorter than its checksum")
        .of_kind(FindingKind::kTruncated);
  }
  return {std::make_shared<Checked>(stage.bytes, shown), stage.stream};
}

/// Elements of one byte, and chunks with less than one element, are unchanged.
Stage unshuffled(const Stage& stage, std::uint32_t width, const std::string& shown) {
  const std::int64_t bytes = stage.bytes->size(), count = bytes / width;
  if (width == 1 || count < 2) return stage;
  if (width > kMostPlanes) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot decode {}", shown))
        .because(fmt::format("it has {} bytes, of shuffled elements of {} bytes; those are read in smaller chunks only",
                             bytes, width))
        .hint("write the dataset again with chunks of up to 4 MiB");
  }
  if (!stage.stream) return {std::make_shared<Unshuffled>(std::vector<Input>(width, stage.bytes), bytes)};
  std::byte first[1];
  stage.bytes->read_at(0, first);  // Reading compares the checksum, if there is one.
  std::vector<std::int64_t> begins(width);
  for (std::size_t k = 0; k < begins.size(); ++k) begins[k] = static_cast<std::int64_t>(k) * count;
  return {std::make_shared<Unshuffled>(decoded_view::decompressed_at(*stage.stream, begins), bytes)};
}

class LargeChunk final : public RandomReader {
 public:
  explicit LargeChunk(const FilteredChunk& chunk) : chunk_(chunk) { name_ = chunk.file->name(); }
  std::int64_t size() const override { return chunk_.bytes; }
  std::unique_lock<std::mutex> turn() const override { return std::unique_lock(turn_); }
  std::int64_t held_bytes() const override { return opened_ ? bytes_->held_bytes() : 0; }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override try {
    check_within(offset, out.size(), chunk_.bytes, name_);
    std::call_once(begun_, [this] {
      bytes_ = open();
      opened_ = true;
    });
    bytes_->read_at(offset, out);
  } catch (Error& error) {
    error.in_file(name_);
    throw;
  }

 private:
  Input open() const {
    Stage stage{decoded_view::as_elements(chunk_.file, chunk_.place.offset, chunk_.place.bytes, {})};
    for (const FilterStep& step : steps_to_undo(chunk_.filters, chunk_.place, chunk_.bytes, chunk_.shown)) {
      switch (step.filter.kind) {
        case FilterKind::kDeflate:
          stage = decompressed(stage, step, decoded_view::Codec::kZlib, chunk_.shown);
          break;
        case FilterKind::kLzf:
          stage = decompressed(stage, step, decoded_view::Codec::kLzf, chunk_.shown);
          break;
        case FilterKind::kShuffle:
          stage = unshuffled(stage, step.filter.parameter, chunk_.shown);
          break;
        case FilterKind::kFletcher32:
          stage = checked_sum(stage, chunk_.shown);
          break;
      }
    }
    return stage.bytes;
  }

  const FilteredChunk chunk_;
  mutable std::mutex turn_;
  mutable std::once_flag begun_;
  mutable std::atomic<bool> opened_{false};
  mutable Input bytes_;
};

}  // namespace

std::shared_ptr<const RandomReader> decoded_chunk(const FilteredChunk& chunk) {
  if (chunk.bytes <= kWholeChunk) return std::make_shared<SmallChunk>(chunk);
  return large_chunk(chunk);
}

std::shared_ptr<const RandomReader> constant_view(std::span<const std::byte> fill, std::int64_t bytes,
                                                  std::string name) {
  return std::make_shared<Constant>(fill, bytes, std::move(name));
}

std::shared_ptr<const RandomReader> large_chunk(const FilteredChunk& chunk) {
  return std::make_shared<LargeChunk>(chunk);
}

}  // namespace shard::hdf5
