/// \file
/// Element types: all of torch and of safetensors, sub-byte ones included.
#pragma once

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

/// torch's name without "torch.": "bfloat16", "float8_e4m3fn", ...
std::string_view dtype_name(DType dtype);
/// The dtype of that name, or nothing. Also takes common short spellings (bf16, fp16, f32, half, float, ...).
std::optional<DType> dtype_of_name(std::string_view name);

/// The fewest elements that fill whole bytes, and those bytes. Packed elements can be addressed and cut only between
/// blocks.
struct DTypeBlock {
  int elements;  ///< 1 for all but float6.
  int bytes;

  friend bool operator==(const DTypeBlock&, const DTypeBlock&) = default;
};
DTypeBlock dtype_block(DType dtype);
/// Bytes of one element. \pre a block of `dtype` is one element
int element_bytes(DType dtype);
bool is_float(DType dtype);  ///< Real floating point of any width (float4 and float6 too).
bool is_complex(DType dtype);
DType component_of(DType dtype);  ///< The dtype of a complex dtype's two parts; any other dtype itself.
bool is_integer(DType dtype);     ///< Signed and unsigned; not bool.
/// Whether its elements can be converted: all but float4, float6, bits, bcomplex32 and quantized types.
bool is_castable(DType dtype);

}  // namespace shard
