#include "libshard/core/dtype.h"

#include <gtest/gtest.h>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {
namespace {

TEST(DTypeName, IsReadBackForEveryType) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_of_name(dtype_name(dtype)), dtype) << dtype_name(dtype);
  }
}

TEST(DTypeName, IsTorchsName) {
  EXPECT_EQ(dtype_name(DType::kBool), "bool");
  EXPECT_EQ(dtype_name(DType::kBfloat16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::kFloat8E4m3fnuz), "float8_e4m3fnuz");
  EXPECT_EQ(dtype_name(DType::kFloat4E2m1fnX2), "float4_e2m1fn_x2");
  EXPECT_EQ(dtype_name(DType::kQuint2x4), "quint2x4");
}

TEST(DTypeOfName, TakesShortSpellingsAndTorchsPrefix) {
  EXPECT_EQ(dtype_of_name("bf16"), DType::kBfloat16);
  EXPECT_EQ(dtype_of_name("half"), DType::kFloat16);
  EXPECT_EQ(dtype_of_name("float"), DType::kFloat32);
  EXPECT_EQ(dtype_of_name("long"), DType::kInt64);
  EXPECT_EQ(dtype_of_name("torch.float8_e5m2"), DType::kFloat8E5m2);
}

TEST(DTypeOfName, RefusesOtherWords) {
  EXPECT_EQ(dtype_of_name("float12"), std::nullopt);
  EXPECT_EQ(dtype_of_name(""), std::nullopt);
  EXPECT_EQ(dtype_of_name("torch."), std::nullopt);
}

/// Bits of the number that ends a dtype's name ("bfloat16": 16), by torch's rules for names.
int bits_by_name(std::string_view name) {
  for (const std::string_view whole_byte : {"bool", "x2", "x4", "x8"}) {  // bits2x4, quint4x2, float4_e2m1fn_x2, ...
    if (name.ends_with(whole_byte)) return 8;
  }
  const std::string_view digits = name.substr(name.find_first_of("0123456789"));
  int bits = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') break;
    bits = bits * 10 + (c - '0');
  }
  return bits;
}

TEST(DTypeBlock, IsOneElementOfTheBytesThatTheNameSaysAndFourOfFloat6) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string_view name = dtype_name(dtype);
    const bool is_packed = name.starts_with("float6_");
    const DTypeBlock expected = is_packed ? DTypeBlock{4, 3} : DTypeBlock{1, bits_by_name(name) / 8};
    EXPECT_EQ(dtype_block(dtype), expected) << name;
    if (!is_packed) {
      EXPECT_EQ(element_bytes(dtype), expected.bytes) << name;
    }
  }
}

TEST(DTypeBlock, CountsThePackedBytesOfEveryDtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DTypeBlock block = dtype_block(dtype);
    for (std::int64_t elements = 0; elements <= 16; ++elements) {
      if (elements % block.elements != 0) {
        EXPECT_THROW(checked_bytes(elements, dtype), Error) << dtype_name(dtype);
      } else {
        EXPECT_EQ(checked_bytes(elements, dtype) * block.elements, elements * block.bytes) << dtype_name(dtype);
      }
      const std::int64_t within = *bytes_within(elements, dtype);
      EXPECT_GE(within * block.elements, elements * block.bytes) << dtype_name(dtype);
      EXPECT_LT((within - block.bytes) * block.elements, elements * block.bytes) << dtype_name(dtype);
    }
  }
}

TEST(DTypeClass, EveryTypeHasAtMostOne) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_LE(int{is_float(dtype)} + int{is_complex(dtype)} + int{is_integer(dtype)}, 1) << dtype_name(dtype);
  }
}

TEST(DTypeClass, SeparatesFloatsIntegersAndComplex) {
  EXPECT_TRUE(is_float(DType::kFloat8E8m0fnu));
  EXPECT_TRUE(is_float(DType::kFloat6E2m3fn));
  EXPECT_TRUE(is_integer(DType::kUint64));
  EXPECT_TRUE(is_complex(DType::kBcomplex32));
  EXPECT_FALSE(is_integer(DType::kBool));
  EXPECT_FALSE(is_integer(DType::kQint32));
  EXPECT_FALSE(is_float(DType::kComplex64));
}

TEST(ComponentOf, IsHalfAComplexDtypeAndAnyOtherItself) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_block(component_of(dtype)).bytes * (is_complex(dtype) ? 2 : 1), dtype_block(dtype).bytes)
        << dtype_name(dtype);
    EXPECT_FALSE(is_complex(component_of(dtype))) << dtype_name(dtype);
  }
  EXPECT_EQ(component_of(DType::kBcomplex32), DType::kBfloat16);
}

TEST(IsCastable, HoldsForAllButPackedBitsAndQuantizedTypes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string_view name = dtype_name(dtype);
    const bool is_other = name.starts_with("float4_") || name.starts_with("float6_") || name.starts_with("bits") ||
                          name.starts_with("q") || name == "bcomplex32";
    EXPECT_EQ(is_castable(dtype), !is_other) << name;
  }
}

}  // namespace
}  // namespace shard
