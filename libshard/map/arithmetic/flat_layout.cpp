#include "libshard/map/arithmetic/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libshard/catalog/flat_run.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::int64_t kCoreAlign = 64, kCoreEnd = 128;
constexpr std::size_t kNoTensor = SIZE_MAX;

class FlatMaker {
 public:
  FlatMaker(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule)
      : numels_(numels), ends_(ends), rule_(rule), align_(align_of(rule)), end_(end_of(rule)) {}

  FlatLayout run() {
    layout_.tensors.resize(numels_.size());
    for (std::size_t i = 0; i < numels_.size(); ++i) {
      const bool is_reversed = rule_.kind == FlatKind::kMcoreBucket;
      place(is_reversed ? numels_.size() - 1 - i : i);
    }
    if (!runs_.empty()) close();
    return std::move(layout_);
  }

 private:
  struct Run {
    std::size_t tensor;
    std::int64_t begin, count;
  };

  static std::int64_t align_of(const FlatRule& rule) {
    if (rule.kind == FlatKind::kMcoreBucket) return kCoreAlign;
    if (rule.align < 1) throw wrong("the map's flatten.align is not a number of elements").found(rule.align);
    return rule.align;
  }
  static std::int64_t end_of(const FlatRule& rule) {
    if (rule.bucket_size && *rule.bucket_size < 1) {
      throw wrong("the map's flatten.buckets is not a number of elements").found(*rule.bucket_size);
    }
    if (rule.kind == FlatKind::kZero12) return checked_mul(2, rule.parts);
    return rule.kind == FlatKind::kMcoreBucket ? std::lcm(rule.parts, kCoreEnd) : rule.parts;
  }
  static std::int64_t rounded(std::int64_t n, std::int64_t step) { return checked_mul(ceil_div(n, step), step); }

  void add_run(std::size_t tensor, std::int64_t count) {
    if (count > 0 || tensor != kNoTensor) runs_.push_back({tensor, used_, count});
    used_ = checked_add(used_, count);
  }

  void place(std::size_t tensor) {
    add_run(kNoTensor, rounded(used_, align_) - used_);
    add_run(tensor, numels_[tensor]);
    const bool is_full = rule_.bucket_size && used_ >= *rule_.bucket_size;
    if (rule_.kind == FlatKind::kZero3 || is_full || (!ends_.empty() && ends_[tensor])) close();
  }

  /// Ends the bucket, and cuts its runs into slices.
  void close() {
    const std::int64_t used = used_;
    add_run(kNoTensor, rounded(used_, end_) - used_);
    const std::int64_t slice = used_ / rule_.parts, last = used_ - slice;
    const auto bucket = std::ssize(layout_.slices);
    if (rule_.kind == FlatKind::kZero12) layout_.tail = used_ - std::max(used, last);
    for (const Run& run : runs_) {
      for_each_slice_of_run(run.begin, run.count, slice,
                            [&](std::int64_t part, std::int64_t first, std::int64_t before, std::int64_t count) {
                              if (++pieces_ > kMaxFlatPieces) throw too_many_pieces();
                              if (run.tensor != kNoTensor) {
                                layout_.tensors[run.tensor].push_back({part, bucket, first, before, count});
                              } else if (layout_.tail == 0 || part < rule_.parts - 1) {
                                layout_.padding.push_back({part, bucket, first, 0, count});
                              }
                            });
    }
    layout_.slices.push_back(slice);
    runs_.clear();
    used_ = 0;
  }

  std::span<const std::int64_t> numels_;
  const std::vector<bool>& ends_;
  const FlatRule& rule_;
  const std::int64_t align_, end_;
  FlatLayout layout_;
  std::vector<Run> runs_;  ///< Of the bucket, with what pads it.
  std::int64_t used_ = 0;  ///< Elements of the bucket.
  std::size_t pieces_ = 0;
};

}  // namespace

Error too_many_pieces() {
  return Error(ErrorCode::kUnsupported, fmt::format("the map's flatten makes more than {} pieces", kMaxFlatPieces));
}

FlatLayout lay_flat(std::span<const std::int64_t> numels, const std::vector<bool>& ends, const FlatRule& rule) {
  return FlatMaker(numels, ends, rule).run();
}

}  // namespace shard
