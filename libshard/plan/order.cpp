#include "libshard/plan/order.h"

#include <numeric>

namespace shard {

Order order_of(std::span<const std::int64_t> strides) {
  Order order;
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(strides.size());
  std::iota(order.begin(), end, 0);
  const auto stride = [&](int d) { return strides[static_cast<std::size_t>(d)]; };
  for (auto i = order.begin(); i != end; ++i) {  // Insertion sort, because strides are usually in order already.
    for (auto j = i; j != order.begin() && stride(*(j - 1)) < stride(*j); --j) std::swap(*(j - 1), *j);
  }
  return order;
}

void fill_slab(std::span<const std::int64_t> shape, const Order& order, std::int64_t elements, Numbers& sides) {
  // Inner dimensions stay whole while they fit. The first dimension that does not fit is split into equal parts, and
  // all dimensions outside it keep size 1.
  std::fill_n(sides.begin(), shape.size(), std::int64_t{1});
  std::int64_t inner = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    const std::int64_t fits = std::clamp<std::int64_t>(elements / inner, 1, shape[d]);
    const std::int64_t parts = (shape[d] + fits - 1) / fits;
    sides[d] = (shape[d] + parts - 1) / parts;
    if (parts > 1) return;
    inner *= shape[d];
  }
}

}  // namespace shard
