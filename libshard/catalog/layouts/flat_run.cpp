#include "libshard/catalog/layouts/flat_run.h"

#include <vector>

namespace shard {

namespace {

class Peeler {
 public:
  using Visit = std::function<void(std::span<const std::int64_t>, std::span<const std::int64_t>, std::int64_t)>;

  Peeler(std::span<const std::int64_t> shape, const Visit& visit)
      : shape_(shape), row_(shape.size(), 1), offsets_(shape.size(), 0), sizes_(shape.size(), 1), visit_(visit) {
    for (std::size_t d = shape.size(); d-- > 1;) row_[d - 1] = row_[d] * shape[d];
  }

  /// Visits elements [begin, end) of the remaining dimensions, from dimension `d` on.
  void peel(std::size_t d, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (d >= shape_.size()) return emit(d, 0, 1);
    const std::int64_t row = row_[d];
    std::int64_t first = begin / row;
    const std::int64_t last = end / row, head = begin % row, tail = end % row;
    if (head != 0) {
      const bool ends_here = first == (end - 1) / row;
      part(d, first, head, ends_here ? end - first * row : row);
      if (ends_here) return;
      ++first;
    }
    if (first < last) emit(d, first, last - first);
    if (tail != 0) part(d, last, 0, tail);
  }

 private:
  /// Visits elements of one row: a run of the dimensions after `d`.
  void part(std::size_t d, std::int64_t row, std::int64_t begin, std::int64_t end) {
    offsets_[d] = row;
    sizes_[d] = 1;
    peel(d + 1, begin, end);
  }

  /// Visits `count` whole rows of dimension `d`.
  void emit(std::size_t d, std::int64_t first, std::int64_t count) {
    std::int64_t elements = 1;
    for (std::size_t i = d; i < shape_.size(); ++i) {
      offsets_[i] = i == d ? first : 0;
      sizes_[i] = i == d ? count : shape_[i];
      elements *= sizes_[i];
    }
    visit_(offsets_, sizes_, before_);
    before_ += elements;
  }

  std::span<const std::int64_t> shape_;
  std::vector<std::int64_t> row_;  ///< The number of elements in one row of each dimension.
  std::vector<std::int64_t> offsets_, sizes_;
  std::int64_t before_ = 0;
  const Visit& visit_;
};

}  // namespace

void for_each_box_of_run(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t count,
                         const Peeler::Visit& visit) {
  Peeler(shape, visit).peel(0, begin, begin + count);
}

}  // namespace shard
