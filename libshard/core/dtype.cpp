#include "libshard/core/dtype.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace shard {

namespace {

/// Further spellings that users type: torch's own alternative names, and short ones.
constexpr std::pair<std::string_view, DType> kAliases[] = {
    {"bf16", DType::kBfloat16},
    {"fp16", DType::kFloat16},
    {"f16", DType::kFloat16},
    {"half", DType::kFloat16},
    {"fp32", DType::kFloat32},
    {"f32", DType::kFloat32},
    {"float", DType::kFloat32},
    {"fp64", DType::kFloat64},
    {"f64", DType::kFloat64},
    {"double", DType::kFloat64},
    {"u8", DType::kUint8},
    {"u16", DType::kUint16},
    {"u32", DType::kUint32},
    {"u64", DType::kUint64},
    {"i8", DType::kInt8},
    {"i16", DType::kInt16},
    {"i32", DType::kInt32},
    {"i64", DType::kInt64},
    {"short", DType::kInt16},
    {"int", DType::kInt32},
    {"long", DType::kInt64},
    {"chalf", DType::kComplex32},
    {"cfloat", DType::kComplex64},
    {"cdouble", DType::kComplex128},
    {"fp8_e4m3fn", DType::kFloat8E4m3fn},
    {"f8_e4m3fn", DType::kFloat8E4m3fn},
    {"fp8_e5m2", DType::kFloat8E5m2},
    {"f8_e5m2", DType::kFloat8E5m2},
};

}  // namespace

std::optional<DType> dtype_of_name(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  const auto* const own = std::ranges::find(kDTypeRows, name, &DTypeRow::name);
  if (own != kDTypeRows.end()) return own->dtype;
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == name) return dtype;
  }
  return std::nullopt;
}

int element_bytes(DType dtype) {
  const DTypeBlock block = dtype_block(dtype);
  assert(block.elements == 1);
  return block.bytes;
}

}  // namespace shard
