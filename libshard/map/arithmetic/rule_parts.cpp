#include "libshard/map/arithmetic/rule_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/map/arithmetic/dim_runs.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::size_t kMaxBoxes = 1 << 20;

/// The dimension, after the permutation, whose positions a rotary permutation reorders: the rows of dimension 0.
int rotary_dim(const MapPermute& permute, int dims) { return permute.transposes && dims == 2 ? 1 : 0; }

/// Applies one rule for one coordinate.
class PartMaker {
 public:
  PartMaker(const ModelMap& map, const RuleTensors& tensors, std::span<const std::int64_t> coordinate)
      : map_(map), rule_(map.rule(tensors.rule)), coordinate_(coordinate), padded_(tensors.padded) {
    for (std::size_t i = 0; i < tensors.shapes.size(); ++i) {
      shapes_.push_back(permuted(rule_.permute[i], tensors.shapes[i], rule_.where));
    }
    check_shapes();
  }

  /// Computes the local shape without stacked dimensions, and sets runs_.
  Sizes cut() {
    Sizes local;
    for (int d = 0; d < dims(); ++d) {
      Sizes sizes;
      // A concatenated dimension has the sizes of all segments. In the other dimensions the segments are equal.
      if (is_concat(d)) {
        for (const Sizes& shape : shapes_) sizes.push_back(shape[static_cast<std::size_t>(d)]);
      } else {
        sizes.push_back(shapes_[0][static_cast<std::size_t>(d)]);
      }
      runs_.emplace_back();
      local.push_back(cut_dim(d, sizes));
      std::ranges::stable_sort(runs_.back(), {}, &DimRun::segment);
    }
    if (rule_.unflatten) divide(local);
    return local;
  }

  /// Calls `add(segment, runs)` for each box of a segment, with one run per dimension. The boxes are the product of the
  /// runs of all dimensions.
  template <class Add>
  void for_each_box(Add&& add) const {
    for (std::size_t segment = 0; segment < shapes_.size(); ++segment) {
      std::vector<std::vector<DimRun>> lists;
      for (int d = 0; d < dims(); ++d) lists.push_back(runs_of(d, segment));
      Sizes counts;
      for (const auto& list : lists) counts.push_back(std::ssize(list));
      if (is_empty(counts)) continue;
      Sizes at(counts.size());
      std::vector<DimRun> chosen(counts.size());
      do {
        for (std::size_t d = 0; d < at.size(); ++d) chosen[d] = lists[d][static_cast<std::size_t>(at[d])];
        add(segment, chosen);
      } while (next_index<std::int64_t>(at, counts) >= 0);
    }
  }

  std::int64_t padding_begin() const { return padding_begin_; }
  std::int64_t row_size() const { return row_size_; }  ///< The size of the rows of a divided dimension, or 1.
  int dims() const { return static_cast<int>(shapes_[0].size()); }
  const MapRule& rule() const { return rule_; }

 private:
  bool is_concat(int d) const { return rule_.concat && rule_.concat->dim == d; }

  /// Divides a dimension of the local shape into rows.
  void divide(Sizes& local) {
    const auto dim = static_cast<std::size_t>(rule_.unflatten->dim);
    row_size_ = map_.variables().evaluate(rule_.unflatten->size);
    if (row_size_ < 1 || local[dim] % row_size_ != 0) {
      throw wrong(
          fmt::format("{} cannot divide a dimension of {} into rows of {}", rule_.where, local[dim], row_size_));
    }
    local[dim] /= row_size_;
    local.insert(local.begin() + rule_.unflatten->dim + 1, row_size_);
  }

  /// Checks that all dimensions of the rule exist, and that segments differ only along the concatenated one.
  void check_shapes() const {
    const Sizes& first = shapes_[0];
    const auto has = [&](int dim) { return dim < std::ssize(first); };
    if (rule_.concat && !has(rule_.concat->dim)) throw lacks_dim(rule_.concat->dim);
    if (rule_.pad && !has(rule_.pad->dim)) throw lacks_dim(rule_.pad->dim);
    if (rule_.unflatten && !has(rule_.unflatten->dim)) throw lacks_dim(rule_.unflatten->dim);
    for (const MapCut& cut : rule_.shard) {
      if (!has(cut.dim)) throw lacks_dim(cut.dim);
    }
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      bool fits = shapes_[i].size() == first.size();
      for (int d = 0; fits && d < std::ssize(first); ++d) {
        const auto at = static_cast<std::size_t>(d);
        fits = is_concat(d) || shapes_[i][at] == first[at];
      }
      if (!fits) {
        throw wrong(fmt::format("{} cannot concatenate tensors of {} and {}", rule_.where, to_string(first),
                                to_string(shapes_[i])))
            .expected(to_string(first))
            .found(to_string(shapes_[i]));
      }
      check_size(i);
    }
  }

  /// Checks that a size stated in the document equals the tensor's.
  void check_size(std::size_t segment) const {
    if (!rule_.concat || (rule_.concat->sizes.empty() && !rule_.concat->is_equal)) return;
    const auto dim = static_cast<std::size_t>(rule_.concat->dim);
    const std::int64_t stated =
        rule_.concat->is_equal ? shapes_[0][dim] : map_.variables().evaluate(rule_.concat->sizes[segment]);
    const std::int64_t size = shapes_[segment][dim];
    if (stated == size) return;
    throw wrong(fmt::format("{}: segment {} does not have the size in the map", rule_.where, segment))
        .expected(stated)
        .found(size);
  }

  Error lacks_dim(int dim) const {
    return wrong(
        fmt::format("{} names dimension {}, which a tensor of {} lacks", rule_.where, dim, to_string(shapes_[0])));
  }

  /// The parameters of an entry of `shard` at this coordinate. `widths`, if there are any, replace the entry's split.
  DimCut number_of(const MapCut& cut, std::int64_t replicas, const std::vector<Expression>& widths) const {
    DimCut numbers{widths.empty() ? cut.split : CutRule::kWidths, map_.mesh()[cut.axis], coordinate_[cut.axis], {}};
    if (replicas < 1 || numbers.parts % replicas != 0) {
      throw wrong(fmt::format("{}: {} replicas do not divide {} ranks", rule_.where, replicas, numbers.parts));
    }
    // Adjacent coordinates have the replicas of one part.
    numbers.parts /= replicas;
    numbers.index /= replicas;
    std::vector<std::int64_t> listed;
    for (const Expression& width : widths.empty() ? cut.widths : widths) {
      listed.push_back(map_.variables().evaluate(width));
    }
    numbers.ends = ends_of(listed, rule_.where);
    return numbers;
  }

  DimRange cut_all(int d, std::int64_t n, std::int64_t replicas = 1, const std::vector<Expression>& widths = {}) const {
    // If several entries shard one dimension, each divides the part that the entries before it left.
    DimRange range{0, n};
    for (const MapCut& cut : rule_.shard) {
      if (cut.dim != d) continue;
      const DimRange part = cut_range(range.size, number_of(cut, replicas, widths), rule_.where);
      range = {range.begin + part.begin, part.size};
    }
    return range;
  }

  /// Shards dimension `d` and adds its runs. \returns the local size.
  std::int64_t cut_dim(int d, std::span<const std::int64_t> sizes) {
    std::vector<DimRun>& runs = runs_.back();
    // Each segment is sharded separately, and the parts are concatenated.
    if (is_concat(d) && rule_.concat->per_segment) {
      std::int64_t local = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::vector<Expression>& replicas = rule_.concat->replicas;
        const std::vector<std::vector<Expression>>& widths = rule_.concat->widths;
        const DimRange range = cut_all(d, sizes[i], replicas.empty() ? 1 : map_.variables().evaluate(replicas[i]),
                                       widths.empty() ? std::vector<Expression>() : widths[i]);
        if (range.size > 0) runs.push_back({i, range.begin, local, 1, range.size});
        local += range.size;
      }
      return local;
    }
    // The whole concatenated and padded dimension is sharded. Its runs are then found within the resulting range.
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) total = checked_add(total, size);
    const DimRange range = cut_all(d, padded(d, total));
    const std::int64_t groups = is_concat(d) ? map_.variables().evaluate(rule_.concat->interleave) : 1;
    runs = interleaved_runs(sizes, groups, range, rule_.where);
    if (rule_.pad && rule_.pad->dim == d) {
      padding_begin_ = std::clamp(total - range.begin, std::int64_t{0}, range.size);
      if (rule_.pad->fill == MapPad::Fill::kLastRow) repeat_last(sizes, groups, total, range);
    }
    return range.size;
  }

  /// Makes padding repeat the last of `total` positions.
  void repeat_last(std::span<const std::int64_t> sizes, std::int64_t groups, std::int64_t total, DimRange range) {
    if (total == 0) throw wrong(rule_.where + " cannot pad with the last row: there is none");
    const std::vector<DimRun> last = interleaved_runs(sizes, groups, {total - 1, 1}, rule_.where);
    repeat_run(runs_.back(), last.front(), {padding_begin_, range.size - padding_begin_}, rule_.where);
  }

  /// The size of dimension `d` with padding, if its true size is `n`.
  std::int64_t padded(int d, std::int64_t n) const {
    if (!rule_.pad || rule_.pad->dim != d) return n;
    const std::optional<std::int64_t> stated =
        rule_.pad->true_size ? map_.variables().evaluate_known(*rule_.pad->true_size) : std::nullopt;
    if (stated && *stated != n) {
      throw wrong(fmt::format("{}: the padded tensor does not have the size in the map", rule_.where))
          .expected(*stated)
          .found(n);
    }
    // The stored size precedes the document's, if it is known.
    const std::int64_t to = padded_ ? *padded_ : map_.variables().evaluate(rule_.pad->to, n);
    if (to >= n) return to;
    if (padded_) {
      throw wrong(fmt::format("{}: fewer elements are stored than the map defines", rule_.where))
          .expected(fmt::format("at least {}", n))
          .found(to);
    }
    throw wrong(fmt::format("{} pads {} to {}, which is less", rule_.where, n, to));
  }

  /// The runs of one segment in dimension `d`. A rotary permutation reorders the rows of a segment, and `unflatten`
  /// stores them as rows of a stored tensor. Both divide its runs further.
  std::vector<DimRun> runs_of(int d, std::size_t segment) const {
    const auto at = static_cast<std::size_t>(d);
    const auto own = is_concat(d) ? std::ranges::equal_range(runs_[at], segment, {}, &DimRun::segment)
                                  : std::ranges::subrange(runs_[at]);
    std::vector<DimRun> runs(own.begin(), own.end());
    const MapPermute& permute = rule_.permute[segment];
    if (permute.rotary != MapPermute::Rotary::kNone && d == rotary_dim(permute, dims())) {
      runs = without_rotary(runs, permute.rotary, shapes_[segment][at], map_.variables().evaluate(permute.heads),
                            rule_.where);
    }
    if (rule_.unflatten && rule_.unflatten->dim == d) runs = within_rows(runs, row_size_, rule_.where);
    return runs;
  }

  const ModelMap& map_;
  const MapRule& rule_;
  std::span<const std::int64_t> coordinate_;
  std::optional<std::int64_t> padded_;
  std::vector<Sizes> shapes_;              ///< The shapes after the permutation.
  std::vector<std::vector<DimRun>> runs_;  ///< By dimension, sorted by segment.
  std::int64_t padding_begin_ = 0;         ///< The local position at which padding begins, if the rule pads.
  std::int64_t row_size_ = 1;              ///< The size of the rows of a divided dimension.
};

/// Inserts the stacked dimensions into `shape`. \throws Error kInvalidArgument  a stacked dimension is past the last
Sizes with_stack(Sizes shape, const MapRule& rule, std::span<const std::int64_t> sizes) {
  for (std::size_t i = 0; i < rule.stack.size(); ++i) {
    if (rule.stack[i].dim > std::ssize(shape)) throw wrong(rule.where + ": stack names a dimension past the last");
    shape.insert(shape.begin() + rule.stack[i].dim, sizes[i]);
  }
  return shape;
}

/// The dimensions of the stored tensor in which one dimension of a segment is. Positions in rows are along `axis`. If
/// the dimension is divided, its rows are along `rows`, otherwise both are equal.
struct PlaceOfDim {
  std::size_t rows, axis;
};

std::vector<PlaceOfDim> places_of_dims(const MapRule& rule, int dims) {
  std::vector<int> places(static_cast<std::size_t>(dims + (rule.unflatten ? 1 : 0)));
  std::iota(places.begin(), places.end(), 0);
  for (const MapStack& stack : rule.stack) {
    for (int& place : places) place += place >= stack.dim ? 1 : 0;
  }
  std::vector<PlaceOfDim> all;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto rows = static_cast<std::size_t>(places[i]);
    const bool is_divided = rule.unflatten && static_cast<int>(i) == rule.unflatten->dim;
    all.push_back({rows, is_divided ? static_cast<std::size_t>(places[++i]) : rows});
  }
  return all;
}

}  // namespace

Sizes permuted(const MapPermute& permute, Sizes shape, const std::string& where) {
  if (!permute.transposes) return shape;
  if (shape.size() < 2) throw wrong(fmt::format("{} cannot transpose a tensor of {}", where, to_string(shape)));
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

std::int64_t RuleTensors::stacked() const {
  return std::accumulate(stack.begin(), stack.end(), std::int64_t{1}, checked_mul);
}

/// A negative coordinate counts from the end of its axis.
bool is_on(const ModelMap& map, const MapRule& rule, std::span<const std::int64_t> coordinate) {
  return std::ranges::all_of(rule.on, [&](const MapOn& on) {
    return std::ranges::any_of(on.coordinates, [&](std::int64_t wanted) {
      return (wanted < 0 ? wanted + map.mesh()[on.axis] : wanted) == coordinate[on.axis];
    });
  });
}

RankPart part_of_rank(const ModelMap& map, const RuleTensors& tensors, std::span<const std::int64_t> coordinate,
                      std::span<const std::int64_t> stack_begin, std::span<const std::int64_t> stack_size,
                      Arena& arena) {
  PartMaker maker(map, tensors, coordinate);
  const MapRule& rule = maker.rule();
  RankPart part;
  part.shape = with_stack(maker.cut(), rule, stack_size);
  if (std::ssize(part.shape) > kMaxDims) {
    throw wrong(fmt::format("{} stores a tensor of more than {} dimensions", rule.where, kMaxDims));
  }
  const std::vector<PlaceOfDim> places = places_of_dims(rule, maker.dims());
  const auto dims = static_cast<std::size_t>(maker.dims());
  const auto segments = static_cast<std::int64_t>(tensors.shapes.size());
  if (is_empty(stack_size)) return part;
  Sizes at(stack_size.size());
  // Visits all positions of the stacked indices. Each position has its own logical tensors, and fixes the stored
  // tensor's begin in the stacked dimensions.
  do {
    std::int64_t position = 0;
    Sizes begin(part.shape.size());
    for (std::size_t i = 0; i < at.size(); ++i) {
      position = position * tensors.stack[i] + stack_begin[i] + at[i];
      begin[static_cast<std::size_t>(rule.stack[i].dim)] = at[i];
    }
    maker.for_each_box([&](std::size_t segment, std::span<const DimRun> runs) {
      if (part.boxes.size() == kMaxBoxes) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("{} divides a tensor into more than {} boxes", rule.where, kMaxBoxes));
      }
      Sizes offsets(dims), sizes(dims), axis(dims), step(dims);
      for (std::size_t d = 0; d < dims; ++d) {
        // A transposed segment exchanges the last two dimensions, d and 2 * dims - 3 - d.
        const bool is_swapped = rule.permute[segment].transposes && d + 2 >= dims;
        const std::size_t logical = is_swapped ? 2 * dims - 3 - d : d;
        offsets[logical] = runs[d].logical;
        sizes[logical] = runs[d].length;
        axis[logical] = static_cast<std::int64_t>(places[d].axis);
        step[logical] = runs[d].step;
        const bool is_divided = places[d].axis != places[d].rows;
        begin[places[d].rows] = is_divided ? runs[d].local / maker.row_size() : runs[d].local;
        if (is_divided) begin[places[d].axis] = runs[d].local % maker.row_size();
      }
      part.boxes.push_back({static_cast<std::uint32_t>(position * segments + static_cast<std::int64_t>(segment)),
                            arena.dims(offsets), arena.dims(sizes), arena.dims(begin), arena.dims(axis),
                            arena.dims(step)});
    });
  } while (!at.empty() && next_index<std::int64_t>(at, stack_size) >= 0);
  const bool is_filled = rule.pad && rule.pad->fill != MapPad::Fill::kLastRow;
  const std::size_t padded = is_filled ? places[static_cast<std::size_t>(rule.pad->dim)].axis : 0;
  if (is_filled && maker.padding_begin() < part.shape[padded]) {
    part.has_padding = true;
    part.padded_dim = static_cast<int>(padded);
    part.padding_begin = maker.padding_begin();
  }
  return part;
}

MapBox padding_box(const RankPart& part, Arena& arena) {
  const auto padded = static_cast<std::size_t>(part.padded_dim);
  Sizes sizes = part.shape, begin(sizes.size()), axis(sizes.size());
  begin[padded] = part.padding_begin;
  sizes[padded] -= part.padding_begin;
  std::iota(axis.begin(), axis.end(), 0);
  return {0,
          arena.zeros(static_cast<int>(sizes.size())),
          arena.dims(sizes),
          arena.dims(begin),
          arena.dims(axis),
          arena.dims(Sizes(sizes.size(), 1))};
}

MapBox run_box(std::int64_t begin, std::int64_t count, Arena& arena) {
  const auto one = [&](std::int64_t number) { return arena.dims(std::array{number}); };
  return {0, one(0), one(count), one(begin), one(0), one(1)};
}

}  // namespace shard
