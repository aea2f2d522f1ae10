#include "libshard/core/dtype.h"

#include <gtest/gtest.h>

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

TEST(DTypeBits, OfOneElement) {
  EXPECT_EQ(dtype_bits(DType::kBool), 8);
  EXPECT_EQ(dtype_bits(DType::kFloat16), 16);
  EXPECT_EQ(dtype_bits(DType::kComplex32), 32);
  EXPECT_EQ(dtype_bits(DType::kComplex128), 128);
  EXPECT_EQ(dtype_bits(DType::kFloat4E2m1fnX2), 8);
  EXPECT_EQ(dtype_bits(DType::kFloat6E3m2fn), 6);
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
    EXPECT_EQ(dtype_bits(component_of(dtype)), dtype_bits(dtype) / (is_complex(dtype) ? 2 : 1)) << dtype_name(dtype);
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
