#include "formats/hdf5/datatype.h"

#include <gtest/gtest.h>

namespace shard::hdf5 {
namespace {

std::string_view attribute_of(DType dtype) { return is_opaque(dtype) ? dtype_name(dtype) : std::string_view(); }

TEST(Datatype, EveryDtypeIsReadAsItIsWritten) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto read = element_type(type_of(dtype), attribute_of(dtype));
    ASSERT_TRUE(read) << dtype_name(dtype);
    EXPECT_EQ(read->dtype, dtype);
    EXPECT_FALSE(read->swap);
    EXPECT_FALSE(read->is_enum);
    EXPECT_TRUE(read->dims.empty());
  }
}

TEST(Datatype, ABlockOfElementsHasItsBytes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DTypeBlock block = dtype_block(dtype);
    EXPECT_EQ(type_of(dtype).bytes, block.elements == 1 ? block.bytes : 1) << dtype_name(dtype);
  }
}

TEST(Datatype, BigEndianElementsAreSwapped) {
  Type type = type_of(DType::kInt32);
  type.big_endian = true;
  EXPECT_TRUE(element_type(type, {})->swap);
  Type byte = type_of(DType::kInt8);
  byte.big_endian = true;
  EXPECT_FALSE(element_type(byte, {})->swap);
}

TEST(Datatype, FloatsAreKnownByTheirBits) {
  Type type = type_of(DType::kFloat8E5m2);
  type.fields.bias = 16;
  EXPECT_EQ(element_type(type, {})->dtype, DType::kFloat8E5m2fnuz);
  type.fields = {8, 0, 7, 3, 4, 0, 3, 7, true};
  EXPECT_EQ(element_type(type, {})->dtype, DType::kFloat8E4m3fn);
  type.fields.implied_one = false;
  EXPECT_FALSE(element_type(type, {}));
  Type wide = type_of(DType::kFloat64);
  wide.bytes = 16;
  EXPECT_FALSE(element_type(wide, {}));
}

TEST(Datatype, IntegersWithPaddingAreNone) {
  Type type = type_of(DType::kInt32);
  type.precision = 24;
  EXPECT_FALSE(element_type(type, {}));
}

TEST(Datatype, OpaqueElementsAreWhatTheirAttributeSays) {
  Type two;
  two.kind = TypeClass::kOpaque;
  two.bytes = 2;
  EXPECT_EQ(element_type(two, "bfloat16")->dtype, DType::kBfloat16);
  EXPECT_EQ(element_type(two, "")->dtype, DType::kBits16);
  EXPECT_FALSE(element_type(two, "float32"));
  EXPECT_FALSE(element_type(two, "nonsense"));
  two.bytes = 3;
  EXPECT_FALSE(element_type(two, ""));
}

TEST(Datatype, EnumsAreTheirBaseUnlessTheyAreBool) {
  Type colors = type_of(DType::kBool);
  colors.inner[2].name = "GREEN";
  const auto read = element_type(colors, {});
  EXPECT_EQ(read->dtype, DType::kInt8);
  EXPECT_TRUE(read->is_enum);
}

TEST(Datatype, CompoundsAreComplexNumbersOnlyWhenTheyAreBuiltSo) {
  Type type = type_of(DType::kComplex64);
  type.inner[1].at = 5;
  EXPECT_FALSE(element_type(type, {}));
  type = type_of(DType::kComplex64);
  type.inner[1].name = "x";
  EXPECT_FALSE(element_type(type, {}));
  type = type_of(DType::kComplex64);
  type.inner[1].type = type_of(DType::kFloat64);
  EXPECT_FALSE(element_type(type, {}));
}

TEST(Datatype, ArraysAddDimensions) {
  Type inner;
  inner.kind = TypeClass::kArray;
  inner.bytes = 24;
  inner.dims = {3};
  inner.inner = {{"", 0, 0, type_of(DType::kFloat64)}};
  Type outer;
  outer.kind = TypeClass::kArray;
  outer.bytes = 48;
  outer.dims = {2};
  outer.inner = {{"", 0, 0, inner}};
  const auto read = element_type(outer, {});
  EXPECT_EQ(read->dtype, DType::kFloat64);
  EXPECT_EQ(read->dims, (std::vector<std::int64_t>{2, 3}));
}

}  // namespace
}  // namespace shard::hdf5
