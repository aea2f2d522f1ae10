/// \file
/// Element types: all of torch and of safetensors, sub-byte ones included.
///
/// A dtype is one row of kDTypeRows, which has its size and its name in each format. Tables elsewhere that need code
/// per dtype (conversion, text, HDF5 types) are checked against the rows when they are compiled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shard {

/// Names are torch's. kFloat4E2m1fnX2 counts in torch's shape: one element is one byte that packs two numbers.
/// kFloat6* count single numbers: a block of four takes three bytes.
enum class DType : std::uint8_t {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4m3fn,
  kFloat8E5m2,
  kFloat8E4m3fnuz,
  kFloat8E5m2fnuz,
  kFloat8E8m0fnu,
  kFloat4E2m1fnX2,
  kFloat6E2m3fn,
  kFloat6E3m2fn,
  kBits8,
  kBits16,
  kBits1x8,
  kBits2x4,
  kBits4x2,
  kBcomplex32,
  kQint8,
  kQuint8,
  kQint32,
  kQuint4x2,
  kQuint2x4,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kQuint2x4) + 1;

/// The smallest number of elements that fill whole bytes, and the number of those bytes. Packed elements can be
/// addressed and split only between blocks.
struct DTypeBlock {
  int elements;  ///< 1 for all dtypes except float6.
  int bytes;

  friend bool operator==(const DTypeBlock&, const DTypeBlock&) = default;
};

enum class DTypeClass : std::uint8_t {
  kOther,
  kInteger,  ///< Signed and unsigned; not bool.
  kFloat,    ///< Real floating point of any width (float4 and float6 too).
  kComplex,
};

/// Names are empty if the format has none.
struct DTypeRow {
  DType dtype;
  std::string_view name;  ///< torch's name without "torch.".
  DTypeBlock block;
  DTypeClass kind;
  DType component;               ///< The dtype of a complex dtype's two parts; any other dtype itself.
  bool is_castable;              ///< Whether convert::with_type has its type.
  std::string_view safetensors;  ///< In headers.
  std::string_view torch_class;  ///< The storage class of pickles. Others have untyped storages.
  std::string_view numpy;        ///< In .npy files.
};

// clang-format off
/// In DType's order.
inline constexpr std::array<DTypeRow, kDTypeCount> kDTypeRows{{
    {DType::kBool, "bool", {1, 1}, DTypeClass::kOther, DType::kBool, true, "BOOL", "BoolStorage", "|b1"},
    {DType::kUint8, "uint8", {1, 1}, DTypeClass::kInteger, DType::kUint8, true, "U8", "ByteStorage", "|u1"},
    {DType::kInt8, "int8", {1, 1}, DTypeClass::kInteger, DType::kInt8, true, "I8", "CharStorage", "|i1"},
    {DType::kUint16, "uint16", {1, 2}, DTypeClass::kInteger, DType::kUint16, true, "U16", {}, "<u2"},
    {DType::kInt16, "int16", {1, 2}, DTypeClass::kInteger, DType::kInt16, true, "I16", "ShortStorage", "<i2"},
    {DType::kUint32, "uint32", {1, 4}, DTypeClass::kInteger, DType::kUint32, true, "U32", {}, "<u4"},
    {DType::kInt32, "int32", {1, 4}, DTypeClass::kInteger, DType::kInt32, true, "I32", "IntStorage", "<i4"},
    {DType::kUint64, "uint64", {1, 8}, DTypeClass::kInteger, DType::kUint64, true, "U64", {}, "<u8"},
    {DType::kInt64, "int64", {1, 8}, DTypeClass::kInteger, DType::kInt64, true, "I64", "LongStorage", "<i8"},
    {DType::kFloat16, "float16", {1, 2}, DTypeClass::kFloat, DType::kFloat16, true, "F16", "HalfStorage", "<f2"},
    {DType::kBfloat16, "bfloat16", {1, 2}, DTypeClass::kFloat, DType::kBfloat16, true, "BF16", "BFloat16Storage", {}},
    {DType::kFloat32, "float32", {1, 4}, DTypeClass::kFloat, DType::kFloat32, true, "F32", "FloatStorage", "<f4"},
    {DType::kFloat64, "float64", {1, 8}, DTypeClass::kFloat, DType::kFloat64, true, "F64", "DoubleStorage", "<f8"},
    {DType::kComplex32, "complex32", {1, 4}, DTypeClass::kComplex, DType::kFloat16, true, {}, {}, {}},
    {DType::kComplex64, "complex64", {1, 8}, DTypeClass::kComplex, DType::kFloat32, true, "C64", "ComplexFloatStorage", "<c8"},
    {DType::kComplex128, "complex128", {1, 16}, DTypeClass::kComplex, DType::kFloat64, true, {}, "ComplexDoubleStorage", "<c16"},
    {DType::kFloat8E4m3fn, "float8_e4m3fn", {1, 1}, DTypeClass::kFloat, DType::kFloat8E4m3fn, true, "F8_E4M3", {}, {}},
    {DType::kFloat8E5m2, "float8_e5m2", {1, 1}, DTypeClass::kFloat, DType::kFloat8E5m2, true, "F8_E5M2", {}, {}},
    {DType::kFloat8E4m3fnuz, "float8_e4m3fnuz", {1, 1}, DTypeClass::kFloat, DType::kFloat8E4m3fnuz, true, "F8_E4M3FNUZ", {}, {}},
    {DType::kFloat8E5m2fnuz, "float8_e5m2fnuz", {1, 1}, DTypeClass::kFloat, DType::kFloat8E5m2fnuz, true, "F8_E5M2FNUZ", {}, {}},
    {DType::kFloat8E8m0fnu, "float8_e8m0fnu", {1, 1}, DTypeClass::kFloat, DType::kFloat8E8m0fnu, true, "F8_E8M0", {}, {}},
    {DType::kFloat4E2m1fnX2, "float4_e2m1fn_x2", {1, 1}, DTypeClass::kFloat, DType::kFloat4E2m1fnX2, false, "F4", {}, {}},
    {DType::kFloat6E2m3fn, "float6_e2m3fn", {4, 3}, DTypeClass::kFloat, DType::kFloat6E2m3fn, false, "F6_E2M3", {}, {}},
    {DType::kFloat6E3m2fn, "float6_e3m2fn", {4, 3}, DTypeClass::kFloat, DType::kFloat6E3m2fn, false, "F6_E3M2", {}, {}},
    {DType::kBits8, "bits8", {1, 1}, DTypeClass::kOther, DType::kBits8, false, {}, {}, {}},
    {DType::kBits16, "bits16", {1, 2}, DTypeClass::kOther, DType::kBits16, false, {}, {}, {}},
    {DType::kBits1x8, "bits1x8", {1, 1}, DTypeClass::kOther, DType::kBits1x8, false, {}, {}, {}},
    {DType::kBits2x4, "bits2x4", {1, 1}, DTypeClass::kOther, DType::kBits2x4, false, {}, {}, {}},
    {DType::kBits4x2, "bits4x2", {1, 1}, DTypeClass::kOther, DType::kBits4x2, false, {}, {}, {}},
    {DType::kBcomplex32, "bcomplex32", {1, 4}, DTypeClass::kComplex, DType::kBfloat16, false, {}, {}, {}},
    {DType::kQint8, "qint8", {1, 1}, DTypeClass::kOther, DType::kQint8, false, {}, "QInt8Storage", {}},
    {DType::kQuint8, "quint8", {1, 1}, DTypeClass::kOther, DType::kQuint8, false, {}, "QUInt8Storage", {}},
    {DType::kQint32, "qint32", {1, 4}, DTypeClass::kOther, DType::kQint32, false, {}, "QInt32Storage", {}},
    {DType::kQuint4x2, "quint4x2", {1, 1}, DTypeClass::kOther, DType::kQuint4x2, false, {}, "QUInt4x2Storage", {}},
    {DType::kQuint2x4, "quint2x4", {1, 1}, DTypeClass::kOther, DType::kQuint2x4, false, {}, "QUInt2x4Storage", {}},
}};
// clang-format on

constexpr const DTypeRow& dtype_row(DType dtype) { return kDTypeRows[static_cast<std::size_t>(dtype)]; }

/// True if rows are in DType's order and every dtype has a row.
consteval bool are_dtype_rows_complete() {
  for (std::size_t i = 0; i < kDTypeRows.size(); ++i) {
    if (kDTypeRows[i].dtype != static_cast<DType>(i) || kDTypeRows[i].name.empty()) return false;
  }
  return true;
}
static_assert(are_dtype_rows_complete());

/// torch's name without "torch.": "bfloat16", "float8_e4m3fn", ...
constexpr std::string_view dtype_name(DType dtype) { return dtype_row(dtype).name; }
/// The dtype with that name, or nothing. Accepts common short spellings too (bf16, fp16, f32, half, float, ...).
std::optional<DType> dtype_of_name(std::string_view name);

constexpr DTypeBlock dtype_block(DType dtype) { return dtype_row(dtype).block; }
/// Bytes of one element. \pre a block of `dtype` is one element
int element_bytes(DType dtype);
constexpr bool is_float(DType dtype) { return dtype_row(dtype).kind == DTypeClass::kFloat; }
constexpr bool is_complex(DType dtype) { return dtype_row(dtype).kind == DTypeClass::kComplex; }
constexpr bool is_integer(DType dtype) { return dtype_row(dtype).kind == DTypeClass::kInteger; }
constexpr bool is_signed(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 || dtype == DType::kInt64;
}
constexpr DType component_of(DType dtype) { return dtype_row(dtype).component; }
/// Whether its elements can be converted: all dtypes except float4, float6, bits, bcomplex32 and quantized types.
constexpr bool is_castable(DType dtype) { return dtype_row(dtype).is_castable; }

}  // namespace shard
