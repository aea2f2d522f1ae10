#include "libshard/catalog/layouts/flat_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libshard/catalog/layouts/flat_run.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::int64_t kCoreAlign = 64, kCoreEnd = 128;
constexpr std::size_t kNoTensor = SIZE_MAX;

class FlatMaker {
 public:
  FlatMaker(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule)
      : numels_(numels), ends_(ends), rule_(rule) {}

  // Tensors are placed one after another, with padding before each one for its alignment. close() then divides the full
  // bucket into equal slices, one per part.
  FlatLayout run() {
    layout_.tensors.resize(numels_.size());
    for (std::size_t i = 0; i < numels_.size(); ++i) place(rule_.is_reversed ? numels_.size() - 1 - i : i);
    if (!runs_.empty()) close();
    return std::move(layout_);
  }

 private:
  struct Run {
    std::size_t tensor;
    std::int64_t begin, count;
  };

  static std::int64_t rounded(std::int64_t n, std::int64_t step) { return checked_mul(ceil_div(n, step), step); }

  // An empty tensor is kept as an empty run; empty padding is dropped.
  void add_run(std::size_t tensor, std::int64_t count) {
    if (count > 0 || tensor != kNoTensor) runs_.push_back({tensor, used_, count});
    used_ = checked_add(used_, count);
  }

  void place(std::size_t tensor) {
    add_run(kNoTensor, rounded(used_, rule_.align) - used_);
    add_run(tensor, numels_[tensor]);
    const bool is_full = rule_.bucket_size && used_ >= *rule_.bucket_size;
    if (rule_.has_bucket_per_tensor || is_full || (!ends_.empty() && ends_[tensor])) close();
  }

  /// Ends the bucket: pads it to a multiple of rule_.end, and splits its runs at the borders of the slices.
  void close() {
    const std::int64_t used = used_;
    add_run(kNoTensor, rounded(used_, rule_.end) - used_);
    const std::int64_t slice = used_ / rule_.parts, last = used_ - slice;
    const auto bucket = std::ssize(layout_.slices);
    // If the format does not store the tail, the last part's padding, at most one slice, is not written.
    if (!rule_.stores_tail) layout_.tail = used_ - std::max(used, last);
    for (const Run& run : runs_) {
      for_each_slice_of_run(run.begin, run.count, slice,
                            [&](std::int64_t part, std::int64_t first, std::int64_t before, std::int64_t count) {
                              if (++pieces_ > rule_.max_pieces) throw too_many();
                              if (run.tensor != kNoTensor) {
                                layout_.tensors[run.tensor].push_back({part, bucket, first, before, count});
                              } else if (layout_.tail == 0 || part < rule_.parts - 1) {
                                layout_.padding.push_back({part, bucket, first, 0, count});
                              }
                            });
    }
    layout_.slices.push_back(slice);
    layout_.used.push_back(used);
    runs_.clear();
    used_ = 0;
  }

  Error too_many() const {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("cannot lay out the flat buffer: it has more than {} pieces", rule_.max_pieces));
  }

  std::span<const std::int64_t> numels_;
  const std::vector<bool>& ends_;
  const FlatRule& rule_;
  FlatLayout layout_;
  std::vector<Run> runs_;  ///< The tensors and padding in the current bucket.
  std::int64_t used_ = 0;  ///< The number of elements in the current bucket.
  std::size_t pieces_ = 0;
};

}  // namespace

FlatRule FlatRule::zero12(std::int64_t parts, std::int64_t alignment) {
  return {.parts = parts, .end = checked_mul(alignment, parts), .stores_tail = false};
}

FlatRule FlatRule::zero3(std::int64_t parts) { return {.parts = parts, .end = parts, .has_bucket_per_tensor = true}; }

FlatRule FlatRule::fsdp1(std::int64_t parts, std::int64_t align) {
  return {.parts = parts, .align = align, .end = parts};
}

// A bucket's size is a multiple of both the number of parts and kCoreEnd (their least common multiple).
FlatRule FlatRule::mcore(std::int64_t parts, std::optional<std::int64_t> bucket_size) {
  return {.parts = parts,
          .align = kCoreAlign,
          .end = checked_mul(parts, kCoreEnd / std::gcd(parts, kCoreEnd)),
          .is_reversed = true,
          .bucket_size = bucket_size};
}

FlatRule FlatRule::mcore_saved() { return {.align = kCoreAlign, .is_reversed = true}; }

std::int64_t FlatLayout::part_size() const { return std::accumulate(slices.begin(), slices.end(), std::int64_t{0}); }

// The elements of the only bucket fill one part after another.
std::int64_t FlatLayout::used_by(std::int64_t part) const {
  if (slices.empty() || slices.front() == 0) return 0;
  return std::clamp<std::int64_t>(used.front() - part * slices.front(), 0, slices.front());
}

FlatLayout lay_flat(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule) {
  return FlatMaker(numels, ends, rule).run();
}

std::vector<FlatPiece> lay_parted(std::int64_t numel, std::int64_t parts, std::int64_t offset) {
  std::vector<FlatPiece> pieces = std::move(lay_flat(std::span(&numel, 1), {}, FlatRule::zero3(parts)).tensors.front());
  for (FlatPiece& piece : pieces) piece.first = checked_add(piece.first, offset);
  return pieces;
}

std::int64_t parted_size(std::int64_t numel, std::int64_t parts) { return ceil_div(numel, parts); }

std::optional<std::vector<std::int64_t>> begins_in_saved_buffer(std::span<const std::int64_t> numels,
                                                                std::int64_t elements) {
  const FlatLayout layout = lay_flat(numels, {}, FlatRule::mcore_saved());
  if (layout.part_size() != elements) return std::nullopt;
  std::vector<std::int64_t> begins;
  for (const std::vector<FlatPiece>& pieces : layout.tensors) {
    begins.push_back(pieces.empty() ? 0 : pieces.front().first);
  }
  return begins;
}

}  // namespace shard
