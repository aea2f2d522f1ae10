#include "formats/hdf5/chunk_view.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "formats/hdf5/chunk_filters.h"
#include "formats/hdf5/large_chunk.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

/// Decoded by the first read, then kept.
class SmallChunk final : public RandomReader {
 public:
  explicit SmallChunk(const FilteredChunk& chunk)
      : chunk_(chunk), filters_(chunk.filters.begin(), chunk.filters.end()) {
    name_ = chunk.file->name();
    chunk_.filters = filters_;
  }
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
    const std::vector<FilterStep> steps = steps_to_undo(filters_, chunk_.place, chunk_.bytes, chunk_.shown);
    Bytes stored(chunk_.place.bytes);
    chunk_.file->read_at(chunk_.place.offset, stored.span());
    bytes_ = undo(steps, std::move(stored), chunk_.shown);
  } catch (Error& error) {
    error.in_file(name_);
    throw;
  }

  FilteredChunk chunk_;
  const std::vector<Filter> filters_;
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

}  // namespace

std::shared_ptr<const RandomReader> decoded_chunk(const FilteredChunk& chunk) {
  if (chunk.bytes <= kWholeChunk) return std::make_shared<SmallChunk>(chunk);
  return large_chunk(chunk);
}

std::shared_ptr<const RandomReader> constant_view(std::span<const std::byte> fill, std::int64_t bytes,
                                                  std::string name) {
  return std::make_shared<Constant>(fill, bytes, std::move(name));
}

}  // namespace shard::hdf5
