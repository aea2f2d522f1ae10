#include "libshard/core/dtype.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace shard {

namespace {

enum class Class : std::uint8_t { kOther, kInteger, kFloat, kComplex };

struct Info {
  std::string_view name;
  DTypeBlock block;
  Class kind;
};

/// In DType's order.
constexpr std::array<Info, kDTypeCount> kInfo = {{
    {"bool", {1, 1}, Class::kOther},
    {"uint8", {1, 1}, Class::kInteger},
    {"int8", {1, 1}, Class::kInteger},
    {"uint16", {1, 2}, Class::kInteger},
    {"int16", {1, 2}, Class::kInteger},
    {"uint32", {1, 4}, Class::kInteger},
    {"int32", {1, 4}, Class::kInteger},
    {"uint64", {1, 8}, Class::kInteger},
    {"int64", {1, 8}, Class::kInteger},
    {"float16", {1, 2}, Class::kFloat},
    {"bfloat16", {1, 2}, Class::kFloat},
    {"float32", {1, 4}, Class::kFloat},
    {"float64", {1, 8}, Class::kFloat},
    {"complex32", {1, 4}, Class::kComplex},
    {"complex64", {1, 8}, Class::kComplex},
    {"complex128", {1, 16}, Class::kComplex},
    {"float8_e4m3fn", {1, 1}, Class::kFloat},
    {"float8_e5m2", {1, 1}, Class::kFloat},
    {"float8_e4m3fnuz", {1, 1}, Class::kFloat},
    {"float8_e5m2fnuz", {1, 1}, Class::kFloat},
    {"float8_e8m0fnu", {1, 1}, Class::kFloat},
    {"float4_e2m1fn_x2", {1, 1}, Class::kFloat},
    {"float6_e2m3fn", {4, 3}, Class::kFloat},
    {"float6_e3m2fn", {4, 3}, Class::kFloat},
    {"bits8", {1, 1}, Class::kOther},
    {"bits16", {1, 2}, Class::kOther},
    {"bits1x8", {1, 1}, Class::kOther},
    {"bits2x4", {1, 1}, Class::kOther},
    {"bits4x2", {1, 1}, Class::kOther},
    {"bcomplex32", {1, 4}, Class::kComplex},
    {"qint8", {1, 1}, Class::kOther},
    {"quint8", {1, 1}, Class::kOther},
    {"qint32", {1, 4}, Class::kOther},
    {"quint4x2", {1, 1}, Class::kOther},
    {"quint2x4", {1, 1}, Class::kOther},
}};

/// Other spellings that people type: torch's own second names, and short ones.
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

const Info& info(DType dtype) { return kInfo[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_of_name(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  const auto own = std::ranges::find(kInfo, name, &Info::name);
  if (own != kInfo.end()) return static_cast<DType>(own - kInfo.begin());
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == name) return dtype;
  }
  return std::nullopt;
}

DTypeBlock dtype_block(DType dtype) { return info(dtype).block; }

int element_bytes(DType dtype) {
  const DTypeBlock block = info(dtype).block;
  assert(block.elements == 1);
  return block.bytes;
}

bool is_float(DType dtype) { return info(dtype).kind == Class::kFloat; }
bool is_complex(DType dtype) { return info(dtype).kind == Class::kComplex; }
bool is_integer(DType dtype) { return info(dtype).kind == Class::kInteger; }
bool is_castable(DType dtype) { return dtype < DType::kFloat4E2m1fnX2; }  // The enum names the castable ones first.

DType component_of(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    case DType::kBcomplex32:
      return DType::kBfloat16;
    default:
      return dtype;
  }
}

}  // namespace shard
