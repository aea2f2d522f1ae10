#include <cassert>

#include "libshard/device/kernels/cast_kernel.h"

namespace shard::kernels {

namespace {

/// The integer dtype that carries a dtype's bits, so that a cast between equal dtypes keeps every bit.
DType carrier_of(DType dtype) {
  switch (element_bytes(dtype)) {
    case 1:
      return DType::kUint8;
    case 2:
      return DType::kUint16;
    case 4:
      return DType::kUint32;
    default:
      return DType::kUint64;
  }
}

}  // namespace

CastShape cast_shape(DType from, DType to, std::int64_t elements) {
  assert(is_castable(from) && is_castable(to));
  CastShape shape{};
  shape.from = component_of(from);
  shape.to = component_of(to);
  if (shape.from == shape.to) shape.from = shape.to = carrier_of(shape.from);
  shape.wide = convert::wide_of(shape.from, is_float(shape.from));
  const bool is_both = is_complex(from) && is_complex(to);
  shape.numbers = is_both ? 2 * elements : elements;
  shape.from_step = is_complex(from) && !is_both ? 2 : 1;
  shape.to_step = is_complex(to) && !is_both ? 2 : 1;
  shape.is_either = shape.from_step == 2 && to == DType::kBool;
  return shape;
}

}  // namespace shard::kernels
