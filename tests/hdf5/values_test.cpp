#include "formats/hdf5/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "formats/hdf5/datatype.h"
#include "libshard/core/value_equality.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

using test::expect_error;
using ::testing::HasSubstr;

class Values : public ::testing::Test {
 protected:
  /// The value of an attribute, with strings shortened as the parser does it.
  Value* read(const OutgoingContent& attribute, bool opaque_unknown = false) {
    return value_of(arena, attribute.view(), opaque_unknown);
  }
  void expect_comes_back(const Value& value, TypeClass as) {
    const OutgoingContent attribute = content_of(value);
    EXPECT_EQ(attribute.type.kind, as) << type_name(value);
    EXPECT_TRUE(ValueEquality().is_equal(*read(attribute), value)) << type_name(value);
  }
  Value* of_kind(ValueKind kind, std::string_view text = {}) {
    Value* const value = make_value(arena, kind);
    if (!text.empty()) value->set_text(arena.copy(text));
    return value;
  }
  Value* real(double number) {
    Value* const value = make_value(arena, ValueKind::kFloat);
    value->real = number;
    return value;
  }
  Value* container(ValueKind kind) {
    Value* const items[] = {make_string(arena, "a"), make_int(arena, 1)};
    return make_list(arena, kind, items);
  }
  /// An attribute with elements of a different program.
  template <class Number>
  static OutgoingContent array(DType dtype, std::vector<std::int64_t> shape, std::vector<Number> numbers) {
    OutgoingContent content{type_of(dtype), {SpaceKind::kSimple, std::move(shape)}, {}};
    content.bytes.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
    return content;
  }

  Arena arena;
};

TEST_F(Values, OfEveryKindComeBack) {
  expect_comes_back(*of_kind(ValueKind::kNone), TypeClass::kInteger);
  Value* const yes = of_kind(ValueKind::kBool);
  yes->number = 1;
  expect_comes_back(*yes, TypeClass::kEnum);
  expect_comes_back(*of_kind(ValueKind::kBool), TypeClass::kEnum);
  expect_comes_back(*make_int(arena, INT64_MIN), TypeClass::kInteger);
  expect_comes_back(*of_kind(ValueKind::kLong, "\x01\x02\x03\x04\x05\x06\x07\x08\x09"), TypeClass::kOpaque);
  expect_comes_back(*real(-0.0), TypeClass::kFloat);
  expect_comes_back(*real(std::bit_cast<double>(0x7FF8000000001234)), TypeClass::kFloat);
  expect_comes_back(*make_string(arena, "Änderung"), TypeClass::kString);
  expect_comes_back(*make_string(arena, ""), TypeClass::kString);
  expect_comes_back(*of_kind(ValueKind::kBytes, std::string_view("\0\xFF", 2)), TypeClass::kOpaque);
  expect_comes_back(*of_kind(ValueKind::kByteArray, "ab"), TypeClass::kOpaque);
  for (const ValueKind kind :
       {ValueKind::kList, ValueKind::kTuple, ValueKind::kDict, ValueKind::kSet, ValueKind::kFrozenSet}) {
    expect_comes_back(*container(kind), TypeClass::kOpaque);
    expect_comes_back(*of_kind(kind), kind == ValueKind::kList ? TypeClass::kFloat : TypeClass::kOpaque);
  }
  Value* const global = make_global(arena, "torch", "float32");
  expect_comes_back(*global, TypeClass::kOpaque);
  Value* const argument = make_string(arena, "cpu");
  expect_comes_back(*make_call(arena, make_global(arena, "torch", "device"), {&argument, 1}), TypeClass::kOpaque);
}

TEST_F(Values, TextsThatNoStringOfHdf5HoldsArePickled) {
  expect_comes_back(*make_string(arena, std::string_view("a\0b", 3)), TypeClass::kOpaque);
  expect_comes_back(*make_string(arena, "\xED\xA0\x80"), TypeClass::kOpaque);  // A lone surrogate.
  expect_comes_back(*make_string(arena, "\xED\x9F\xBF"), TypeClass::kString);
}

TEST_F(Values, WithTensorsOrOpaqueObjectsInsideAreRefused) {
  Value* const tensor = make_tensor(arena, 0);
  expect_error(ErrorCode::kUnsupported, "it contains tensors", [&] {
    content_of(*make_list(arena, ValueKind::kSet, {&tensor, 1}));
  });
  expect_error(ErrorCode::kUnsupported, "an opaque object", [&] { content_of(*of_kind(ValueKind::kOpaque, "C")); });
  Value* const id = of_kind(ValueKind::kPersid);
  expect_error(ErrorCode::kUnsupported, "storages of tensors", [&] {
    content_of(*make_call(arena, make_global(arena, "torch", "f"), {&id, 1}));
  });
}

TEST_F(Values, ThatHoldThemselvesAreWritten) {
  Value* const list = of_kind(ValueKind::kList);
  list->set_items(arena.array<Value*>(1));
  list->items()[0] = list;
  EXPECT_EQ(read(content_of(*list))->items()[0]->kind, ValueKind::kList);
}

TEST_F(Values, ArraysBecomeListsOfLists) {
  const Value* const value = read(array<std::int16_t>(DType::kInt16, {2, 1}, {-1, 7}));
  ASSERT_EQ(value->kind, ValueKind::kList);
  ASSERT_EQ(value->items().size(), 2U);
  EXPECT_EQ(value->items()[0]->items()[0]->number, -1);
  EXPECT_EQ(value->items()[1]->items()[0]->number, 7);
  EXPECT_EQ(read(array<double>(DType::kFloat64, {2, 0}, {}))->items().size(), 2U);
}

TEST_F(Values, NumbersOfEveryWidthAreExact) {
  EXPECT_EQ(read(array<std::uint8_t>(DType::kUint8, {}, {255}))->number, 255);
  EXPECT_EQ(read(array<std::uint32_t>(DType::kUint32, {}, {UINT32_MAX}))->number, std::int64_t{UINT32_MAX});
  EXPECT_EQ(read(array<std::int64_t>(DType::kInt64, {}, {INT64_MIN + 1}))->number, INT64_MIN + 1);
  EXPECT_EQ(read(array<std::uint64_t>(DType::kUint64, {}, {5}))->number, 5);
  const Value* const large = read(array<std::uint64_t>(DType::kUint64, {}, {UINT64_MAX}));
  EXPECT_EQ(large->kind, ValueKind::kLong);
  EXPECT_EQ(large->text(), std::string_view("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", 9));
  EXPECT_EQ(read(array<float>(DType::kFloat32, {}, {0.1F}))->real, double{0.1F});
  EXPECT_EQ(read(array<std::uint16_t>(DType::kFloat16, {}, {0x3C00}))->real, 1.0);
}

TEST_F(Values, BigEndianNumbersAreTurned) {
  OutgoingContent content = array<std::uint32_t>(DType::kInt32, {}, {0x01000000});
  content.type.big_endian = true;
  EXPECT_EQ(read(content)->number, 1);
  OutgoingContent complex = array<std::uint32_t>(DType::kComplex64, {}, {0x0000803F, 0x00000040});  // 1 + 2i
  for (Type::Member& member : complex.type.inner) member.type.big_endian = true;
  const Value* const value = read(complex);
  ASSERT_TRUE(value->is_call_of("builtins", "complex"));
  EXPECT_EQ(value->items()[0]->real, 1.0);
  EXPECT_EQ(value->items()[1]->real, 2.0);
}

TEST_F(Values, TextsThatAreNotUtf8AreBytes) {
  EXPECT_EQ(read({content_of(*make_string(arena, "x")).type, {}, {}, {"\xFF"}})->kind, ValueKind::kBytes);
}

TEST_F(Values, OpaqueElementsOfOthersAreBytes) {
  const OutgoingContent content = array<std::uint8_t>(DType::kBits8, {2}, {1, 2});
  EXPECT_EQ(read(content)->items()[1]->text(), "\x02");
}

TEST_F(Values, DatatypesWithoutAnObjectAreOpaque) {
  Content content;
  content.type.kind = TypeClass::kReference;
  content.type.bytes = 8;
  const Value* const value = value_of(arena, content, false);
  EXPECT_EQ(value->kind, ValueKind::kOpaque);
  EXPECT_EQ(value->text(), "reference of 8 bytes");
}

TEST_F(Values, ShapesThatTheirElementsDoNotFillAreCorrupt) {
  const auto expect_corrupt = [&](std::vector<std::int64_t> shape) {
    expect_error(ErrorCode::kCorruption, "it lacks some elements", [&] {
      read(array<std::uint8_t>(DType::kUint8, std::move(shape), {1, 2}));
    });
  };
  expect_corrupt({3});
  expect_corrupt({INT64_MAX, 2});
  expect_corrupt({-1});
  expect_error(ErrorCode::kCorruption, "it lacks some elements", [&] {
    read(array<std::uint8_t>(DType::kUint8, {INT64_MAX, 0}, {}));
  });
}

TEST_F(Values, PicklesOfUnknownClassesAreRefused) {
  Value* const unknown = make_call(arena, make_global(arena, "os", "system"), {});
  const OutgoingContent content = content_of(*unknown);
  expect_error(ErrorCode::kCorruption, "os.system", [&] { read(content); });
  EXPECT_EQ(read(content, true)->kind, ValueKind::kOpaque);
}

}  // namespace
}  // namespace shard::hdf5
