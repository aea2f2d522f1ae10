#include "formats/hdf5/datatype.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "libshard/core/ascii.h"

namespace shard::hdf5 {

namespace {

struct FloatRow {
  DType dtype;
  std::uint32_t bytes;
  FloatFields fields;
};

/// The usual layout: sign, exponent, mantissa, from the top bit down, with an implied leading one.
constexpr FloatFields ieee(std::uint32_t bits, std::uint32_t exponent_bits, std::uint64_t bias) {
  const std::uint32_t mantissa_bits = bits - 1 - exponent_bits;
  return {bits, 0, bits - 1, mantissa_bits, exponent_bits, 0, mantissa_bits, bias, true};
}

/// The first rows are also used for writing a dtype; the others only for reading. A file does not record whether an
/// e4m3 of bias 7 is IEEE's or OCP's; frameworks use OCP's, without infinities.
constexpr std::array kFloats{
    FloatRow{DType::kFloat16, 2, ieee(16, 5, 15)},      FloatRow{DType::kBfloat16, 2, ieee(16, 8, 127)},
    FloatRow{DType::kFloat32, 4, ieee(32, 8, 127)},     FloatRow{DType::kFloat64, 8, ieee(64, 11, 1023)},
    FloatRow{DType::kFloat8E5m2, 1, ieee(8, 5, 15)},    FloatRow{DType::kFloat8E4m3fn, 1, ieee(8, 4, 7)},
    FloatRow{DType::kFloat8E4m3fnuz, 1, ieee(8, 4, 8)}, FloatRow{DType::kFloat8E5m2fnuz, 1, ieee(8, 5, 16)},
};
constexpr std::size_t kWrittenFloats = 5;

struct IntegerRow {
  DType dtype;
  std::uint32_t bytes;
  bool is_signed;
};
constexpr std::array kIntegers{
    IntegerRow{DType::kUint8, 1, false},  IntegerRow{DType::kInt8, 1, true},    IntegerRow{DType::kUint16, 2, false},
    IntegerRow{DType::kInt16, 2, true},   IntegerRow{DType::kUint32, 4, false}, IntegerRow{DType::kInt32, 4, true},
    IntegerRow{DType::kUint64, 8, false}, IntegerRow{DType::kInt64, 8, true},
};

constexpr std::array kComplexes{DType::kComplex32, DType::kComplex64, DType::kComplex128};

/// Integers and castable complex numbers have an HDF5 type. Other dtypes without a row are opaque, with their name in
/// an attribute.
static_assert(std::ranges::all_of(kDTypeRows, [](const DTypeRow& row) {
  const bool is_complex = row.kind == DTypeClass::kComplex && row.is_castable;
  return (row.kind == DTypeClass::kInteger) == (std::ranges::count(kIntegers, row.dtype, &IntegerRow::dtype) == 1) &&
         is_complex == (std::ranges::count(kComplexes, row.dtype) == 1);
}));

/// None if some bits are padding.
std::optional<DType> integer_dtype(const Type& type) {
  const auto row = std::ranges::find_if(
      kIntegers, [&](const IntegerRow& each) { return each.bytes == type.bytes && each.is_signed == type.is_signed; });
  const bool is_whole = type.offset == 0 && type.precision == type.bytes * 8;
  return row == kIntegers.end() || !is_whole ? std::nullopt : std::optional(row->dtype);
}

std::optional<DType> float_dtype(const Type& type) {
  const auto row = std::ranges::find_if(
      kFloats, [&](const FloatRow& each) { return each.bytes == type.bytes && each.fields == type.fields; });
  return row == kFloats.end() ? std::nullopt : std::optional(row->dtype);
}

/// Accepts the names TRUE = 1 and FALSE = 0, in any order and case.
bool is_bool(const Type& type) {
  if (type.bytes != 1 || type.inner.size() != 3) return false;
  const auto has = [&](std::string_view name, std::int64_t value) {
    return std::any_of(type.inner.begin() + 1, type.inner.end(), [&](const Type::Member& member) {
      return member.value == value && std::ranges::equal(member.name, name, {}, to_upper);
    });
  };
  return has("FALSE", 0) && has("TRUE", 1);
}

/// Two floats of one type that fill the compound, real part first, with any of the known names.
std::optional<ElementType> complex_type(const Type& type) {
  if (type.inner.size() != 2) return std::nullopt;
  const Type::Member &real = type.inner[0], &imaginary = type.inner[1];
  const bool are_named =
      (real.name == "r" && imaginary.name == "i") || (real.name == "real" && imaginary.name == "imag");
  if (!are_named || real.at != 0 || imaginary.at * 2 != type.bytes || real.type.kind != TypeClass::kFloat)
    return std::nullopt;
  const auto part = element_type(real.type, {}), other = element_type(imaginary.type, {});
  if (!part || !other || part->dtype != other->dtype || part->swap != other->swap) return std::nullopt;
  for (const DType dtype : kComplexes) {
    if (component_of(dtype) == part->dtype) return ElementType{.dtype = dtype, .swap = part->swap};
  }
  return std::nullopt;
}

/// Opaque elements have the dtype of their attribute, as shardctl writes them. Without the attribute they are torch's
/// bits8 or bits16.
std::optional<DType> opaque_dtype(const Type& type, std::string_view name) {
  if (!name.empty()) {
    const std::optional<DType> dtype = dtype_of_name(name);
    if (!dtype) return std::nullopt;
    const DTypeBlock block = dtype_block(*dtype);
    const int bytes = block.elements == 1 ? block.bytes : 1;
    return static_cast<std::uint32_t>(bytes) == type.bytes ? dtype : std::nullopt;
  }
  if (type.bytes == 1) return DType::kBits8;
  return type.bytes == 2 ? std::optional(DType::kBits16) : std::nullopt;
}

/// An array adds its dimensions to those of the dataset, outermost first.
std::optional<ElementType> array_type(const Type& type, std::string_view dtype_attribute) {
  if (type.inner.size() != 1) return std::nullopt;
  std::optional<ElementType> element = element_type(type.inner[0].type, dtype_attribute);
  if (element) element->dims.insert(element->dims.begin(), type.dims.begin(), type.dims.end());
  return element;
}

/// h5py's form of bool, or the numbers of any other enum.
std::optional<ElementType> enum_type(const Type& type) {
  if (type.inner.empty()) return std::nullopt;
  if (is_bool(type)) return ElementType{.dtype = DType::kBool};
  std::optional<ElementType> element = element_type(type.inner[0].type, {});
  if (element) element->is_enum = true;
  return element;
}

Type integer_type(const IntegerRow& row) {
  Type type;
  type.bytes = row.bytes;
  type.is_signed = row.is_signed;
  type.precision = row.bytes * 8;
  return type;
}

Type float_type(const FloatRow& row) {
  Type type;
  type.kind = TypeClass::kFloat;
  type.bytes = row.bytes;
  type.fields = row.fields;
  return type;
}

Type bool_type() {
  Type base = integer_type({DType::kInt8, 1, true}), type = base;
  type.kind = TypeClass::kEnum;
  type.inner = {{"", 0, 0, base}, {"FALSE", 0, 0, {}}, {"TRUE", 0, 1, {}}};
  return type;
}

Type compound_of(DType part) {
  Type type;
  const Type part_type = type_of(part);
  type.kind = TypeClass::kCompound;
  type.bytes = part_type.bytes * 2;
  type.inner = {{"r", 0, 0, part_type}, {"i", part_type.bytes, 0, part_type}};
  return type;
}

/// The row with which `dtype` is written, or null.
template <class Row>
const Row* row_of(std::span<const Row> rows, DType dtype) {
  const auto row = std::ranges::find(rows, dtype, &Row::dtype);
  return row == rows.end() ? nullptr : &*row;
}

/// By TypeClass.
constexpr std::string_view kClassNames[] = {
    "integer",   "float", "string", "opaque", "bit field", "enum", "compound", "array", "variable-length sequence",
    "reference", "time",  "complex"};
static_assert(std::size(kClassNames) == static_cast<std::size_t>(TypeClass::kComplex) + 1);

std::string_view class_name(TypeClass kind) { return kClassNames[static_cast<std::size_t>(kind)]; }

}  // namespace

std::optional<ElementType> element_type(const Type& type, std::string_view dtype_attribute) {
  const auto plain = [&](std::optional<DType> dtype) {
    const bool swap = type.big_endian && type.bytes > 1;
    return dtype ? std::optional(ElementType{.dtype = *dtype, .swap = swap}) : std::nullopt;
  };
  switch (type.kind) {
    case TypeClass::kInteger:
      return plain(integer_dtype(type));
    case TypeClass::kFloat:
      return plain(float_dtype(type));
    case TypeClass::kBitfield:
    case TypeClass::kOpaque:
      return plain(opaque_dtype(type, dtype_attribute));
    case TypeClass::kEnum:
      return enum_type(type);
    case TypeClass::kCompound:
      return complex_type(type);
    case TypeClass::kArray:
      return array_type(type, dtype_attribute);
    default:
      return std::nullopt;
  }
}

Type type_of(DType dtype) {
  if (dtype == DType::kBool) return bool_type();
  if (const auto* row = row_of(std::span<const IntegerRow>(kIntegers), dtype)) return integer_type(*row);
  if (const auto* row = row_of(std::span(kFloats).first(kWrittenFloats), dtype)) return float_type(*row);
  if (std::ranges::find(kComplexes, dtype) != kComplexes.end()) return compound_of(component_of(dtype));
  Type type;
  type.kind = TypeClass::kOpaque;
  const DTypeBlock block = dtype_block(dtype);
  type.bytes = static_cast<std::uint32_t>(block.elements == 1 ? block.bytes : 1);
  return type;
}

bool is_opaque(DType dtype) { return type_of(dtype).kind == TypeClass::kOpaque; }

bool is_writable(const Type& type) {
  switch (type.kind) {
    case TypeClass::kVariableLength:
    case TypeClass::kReference:
    case TypeClass::kTime:
    case TypeClass::kComplex:
      return false;
    default:
      return std::ranges::all_of(type.inner, [&](const Type::Member& each) {
        const bool is_name = type.kind == TypeClass::kEnum && &each != &type.inner.front();
        return is_name || is_writable(each.type);
      });
  }
}

std::string to_string(const Type& type) {
  if (type.kind == TypeClass::kString && type.is_variable) return "string of variable length";
  const std::string_view order = type.big_endian && type.bytes > 1 ? "big-endian " : "";
  return fmt::format("{}{} of {} bytes", order, class_name(type.kind), type.bytes);
}

}  // namespace shard::hdf5
