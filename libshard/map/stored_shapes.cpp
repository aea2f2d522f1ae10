#include "libshard/map/stored_shapes.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/index_walk.h"
#include "libshard/map/wrong.h"

namespace shard {

namespace {

/// Answers what was stored, from what is.
class ShapeFinder {
 public:
  using ShapeAt = std::function<std::span<const std::int64_t>(std::span<const std::int64_t>)>;

  ShapeFinder(const ModelMap& map, std::size_t rule, std::span<const std::int64_t> coordinate, const ShapeAt& shape_at)
      : map_(map), rule_(map.rule(rule)), coordinate_(coordinate.begin(), coordinate.end()), shape_at_(shape_at) {
    tensors_.rule = rule;
  }

  RuleTensors run() {
    const Sizes base = unstacked(coordinate_, &tensors_.stack);
    const bool keeps = rule_.pad && rule_.pad->fill == MapPad::Fill::kKeep;
    if (keeps && rule_.pad->dim < std::ssize(base)) tensors_.padded = whole_size(rule_.pad->dim);
    tensors_.shapes.assign(rule_.logical.size(), Sizes());
    for (int d = 0; d < std::ssize(base); ++d) {
      const bool is_concat = rule_.concat && rule_.concat->dim == d;
      for (std::size_t i = 0; i < tensors_.shapes.size(); ++i) {
        tensors_.shapes[i].push_back(is_concat ? segment_size(d, i) : true_size(d));
      }
    }
    for (std::size_t i = 0; i < tensors_.shapes.size(); ++i) {
      tensors_.shapes[i] = permuted(rule_.permute[i], std::move(tensors_.shapes[i]), rule_.where);
    }
    return std::move(tensors_);
  }

 private:
  /// The stored shape at a coordinate without stacked dimensions; their sizes go to `stack`.
  Sizes unstacked(std::span<const std::int64_t> coordinate, std::vector<std::int64_t>* stack) const {
    const std::span<const std::int64_t> stored = shape_at_(coordinate);
    Sizes shape(stored.begin(), stored.end());
    for (std::size_t i = rule_.stack.size(); i-- > 0;) {
      const int dim = rule_.stack[i].dim;
      if (dim >= std::ssize(shape)) {
        throw wrong(
            fmt::format("{} stacks dimension {}, which a tensor of {} lacks", rule_.where, dim, to_string(stored)));
      }
      if (stack != nullptr) stack->insert(stack->begin(), shape[static_cast<std::size_t>(dim)]);
      shape.erase(shape.begin() + dim);
    }
    return shape;
  }

  /// The size of a dimension over all ranks that have parts of it, with its padding.
  std::int64_t whole_size(int d) const {
    Sizes at = coordinate_, counts(at.size(), 1);
    for (const MapCut& cut : rule_.shard) {
      if (cut.dim == d) counts[cut.axis] = map_.mesh()[cut.axis];
    }
    Sizes index(at.size());
    std::int64_t size = 0;
    do {
      for (std::size_t i = 0; i < at.size(); ++i) {
        if (counts[i] > 1) at[i] = index[i];
      }
      const Sizes shape = unstacked(at, nullptr);
      if (d >= std::ssize(shape)) throw wrong(rule_.where + ": ranks store tensors of different dimensions");
      size = checked_add(size, shape[static_cast<std::size_t>(d)]);
    } while (!index.empty() && next_index<std::int64_t>(index, counts) >= 0);
    return size;
  }

  /// By its own size, or the sum of its parts' widths.
  std::optional<std::int64_t> stated_size(std::size_t segment) const {
    const MapConcat& concat = *rule_.concat;
    if (!concat.sizes.empty()) return map_.variables().evaluate(concat.sizes[segment]);
    if (concat.widths.empty() || concat.widths[segment].empty()) return std::nullopt;
    std::int64_t size = 0;
    for (const Expression& width : concat.widths[segment]) {
      const std::int64_t number = map_.variables().evaluate(width);
      if (number < 0) throw wrong(rule_.where + ": a width is negative").found(number);
      if (number > INT64_MAX - size) throw wrong(rule_.where + ": the sum of its widths does not fit 63 bits");
      size += number;
    }
    return size;
  }

  std::int64_t true_size(int d) const {
    const bool is_padded = rule_.pad && rule_.pad->dim == d;
    if (!is_padded) return whole_size(d);
    if (rule_.pad->true_size) return map_.variables().evaluate(*rule_.pad->true_size);
    throw wrong(fmt::format("cannot undo {}: the document does not state the true size of what is padded", rule_.where))
        .because("its pad has no key 'true'");
  }

  std::int64_t segment_size(int d, std::size_t segment) const {
    if (const std::optional<std::int64_t> stated = stated_size(segment)) return *stated;
    const std::size_t segments = rule_.logical.size();
    if (segments == 1) return true_size(d);
    if (!rule_.concat->is_equal) {
      throw wrong(fmt::format("cannot undo {}: the document does not state the sizes of its segments", rule_.where))
          .because("its concat has no key 'sizes'");
    }
    const std::int64_t whole = true_size(d), count = static_cast<std::int64_t>(segments);
    if (whole % count == 0) return whole / count;
    throw wrong(fmt::format("{} cannot cut {} into {} equal segments", rule_.where, whole, count)).found(whole);
  }

  const ModelMap& map_;
  const MapRule& rule_;
  Sizes coordinate_;
  const ShapeAt& shape_at_;
  RuleTensors tensors_;
};

}  // namespace

RuleTensors tensors_of_stored(
    const ModelMap& map, std::size_t rule, std::span<const std::int64_t> coordinate,
    const std::function<std::span<const std::int64_t>(std::span<const std::int64_t>)>& shape_at) {
  return ShapeFinder(map, rule, coordinate, shape_at).run();
}

}  // namespace shard
