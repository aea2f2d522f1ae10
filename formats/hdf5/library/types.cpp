#include "formats/hdf5/library/types.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <vector>

namespace shard::hdf5 {

namespace {

TypeHandle copy_of(hid_t type) { return TypeHandle(H5Tcopy(type)); }

void set_order(const TypeHandle& made, const Type& type) {
  checked(H5Tset_order(made.get(), type.big_endian ? H5T_ORDER_BE : H5T_ORDER_LE));
}

/// Sets the significant bits if they do not fill the element, which is rare.
void set_bits(const TypeHandle& made, std::uint32_t precision, std::uint32_t offset) {
  if (precision != 0) checked(H5Tset_precision(made.get(), precision));
  checked(H5Tset_offset(made.get(), offset));
}

TypeHandle make_integer(const Type& type) {
  TypeHandle made = copy_of(type.is_signed ? H5T_STD_I64LE : H5T_STD_U64LE);
  checked(H5Tset_size(made.get(), type.bytes));
  set_bits(made, type.precision, type.offset);
  set_order(made, type);
  return made;
}

TypeHandle make_bitfield(const Type& type) {
  TypeHandle made = copy_of(H5T_STD_B64LE);
  checked(H5Tset_size(made.get(), type.bytes));
  set_bits(made, type.precision, type.offset);
  set_order(made, type);
  return made;
}

/// Fields are set while the type is wide enough for them: before the size is reduced, or after it is increased.
TypeHandle make_float(const Type& type) {
  constexpr std::uint32_t kDouble = 8;
  TypeHandle made = copy_of(H5T_IEEE_F64LE);
  const FloatFields& fields = type.fields;
  if (type.bytes > kDouble) {
    checked(H5Tset_size(made.get(), type.bytes));
    checked(H5Tset_precision(made.get(), fields.precision));
  }
  checked(H5Tset_fields(made.get(), fields.sign_at, fields.exponent_at, fields.exponent_bits, fields.mantissa_at,
                        fields.mantissa_bits));
  if (type.bytes <= kDouble) {
    checked(H5Tset_precision(made.get(), fields.precision));
    checked(H5Tset_size(made.get(), type.bytes));
  }
  checked(H5Tset_offset(made.get(), fields.offset));
  checked(H5Tset_ebias(made.get(), fields.bias));
  if (!fields.implied_one) checked(H5Tset_norm(made.get(), H5T_NORM_NONE));
  set_order(made, type);
  return made;
}

/// A number as an element of an enum's base type.
std::array<std::byte, 8> base_element(std::int64_t value, const Type& base) {
  std::array<std::byte, 8> element{};
  std::memcpy(element.data(), &value, sizeof value);
  if (base.big_endian) std::ranges::reverse(std::span(element).first(base.bytes));
  return element;
}

TypeHandle make_enum(const Type& type) {
  assert(!type.inner.empty() && type.bytes <= 8);
  const Type& base = type.inner[0].type;
  TypeHandle made(H5Tenum_create(make_type(base).get()));
  for (const Type::Member& member : std::span(type.inner).subspan(1)) {
    checked(H5Tenum_insert(made.get(), member.name.c_str(), base_element(member.value, base).data()));
  }
  return made;
}

TypeHandle make_array(const Type& type) {
  const std::vector<hsize_t> dims(type.dims.begin(), type.dims.end());
  return TypeHandle(
      H5Tarray_create2(make_type(type.inner.at(0).type).get(), static_cast<unsigned>(dims.size()), dims.data()));
}

TypeHandle make_compound(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_COMPOUND, type.bytes));
  for (const Type::Member& member : type.inner) {
    checked(H5Tinsert(made.get(), member.name.c_str(), member.at, make_type(member.type).get()));
  }
  return made;
}

H5T_str_t padding_of(const Type& type) {
  switch (type.padding) {
    case StringPadding::kNull:
      return H5T_STR_NULLPAD;
    case StringPadding::kSpace:
      return H5T_STR_SPACEPAD;
    case StringPadding::kNullTerminated:
      break;
  }
  return H5T_STR_NULLTERM;
}

TypeHandle make_string(const Type& type) {
  TypeHandle made = copy_of(H5T_C_S1);
  checked(H5Tset_size(made.get(), type.is_variable ? H5T_VARIABLE : type.bytes));
  checked(H5Tset_strpad(made.get(), padding_of(type)));
  checked(H5Tset_cset(made.get(), type.is_utf8 ? H5T_CSET_UTF8 : H5T_CSET_ASCII));
  return made;
}

TypeHandle make_opaque(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_OPAQUE, type.bytes));
  if (!type.tag.empty()) checked(H5Tset_tag(made.get(), type.tag.c_str()));
  return made;
}

/// Calls `write` with the address of all elements in memory.
template <class Write>
void with_elements(const Content& content, Write&& write) {
  if (content.space.kind == SpaceKind::kNull) return;
  if (content.type.kind != TypeClass::kString) return write(static_cast<const void*>(content.data.data()));
  if (content.type.is_variable) {
    const std::vector<std::string> texts(content.strings.begin(), content.strings.end());
    std::vector<const char*> pointers;
    for (const std::string& text : texts) pointers.push_back(text.c_str());
    return write(static_cast<const void*>(pointers.data()));
  }
  std::string all;
  for (const std::string_view text : content.strings) {
    const std::string_view fits = text.substr(0, content.type.bytes);
    all.append(fits).append(content.type.bytes - fits.size(),
                            content.type.padding == StringPadding::kSpace ? ' ' : '\0');
  }
  write(static_cast<const void*>(all.data()));
}

bool has_elements(const Content& content) {
  return content.space.kind != SpaceKind::kNull &&
         std::ranges::find(content.space.shape, 0) == content.space.shape.end();
}

PropertiesHandle utf8_names() {
  PropertiesHandle properties(H5Pcreate(H5P_ATTRIBUTE_CREATE));
  checked(H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8));
  return properties;
}

}  // namespace

TypeHandle make_type(const Type& type) {
  switch (type.kind) {
    case TypeClass::kInteger:
      return make_integer(type);
    case TypeClass::kFloat:
      return make_float(type);
    case TypeClass::kEnum:
      return make_enum(type);
    case TypeClass::kBitfield:
      return make_bitfield(type);
    case TypeClass::kCompound:
      return make_compound(type);
    case TypeClass::kArray:
      return make_array(type);
    case TypeClass::kString:
      return make_string(type);
    case TypeClass::kOpaque:
      return make_opaque(type);
    default:
      throw LibraryError("a datatype that is not written", true);
  }
}

SpaceHandle make_space(const Space& space) {
  if (space.kind == SpaceKind::kNull) return SpaceHandle(H5Screate(H5S_NULL));
  if (space.kind == SpaceKind::kScalar) return SpaceHandle(H5Screate(H5S_SCALAR));
  const std::vector<hsize_t> dims(space.shape.begin(), space.shape.end());
  return SpaceHandle(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
}

void add_attribute(hid_t object, const std::string& name, const Content& content) {
  const PropertiesHandle names = utf8_names();
  const TypeHandle type = make_type(content.type);
  const SpaceHandle space = make_space(content.space);
  const AttributeHandle attribute(H5Acreate2(object, name.c_str(), type.get(), space.get(), names.get(), H5P_DEFAULT));
  if (!has_elements(content)) return;
  with_elements(content, [&](const void* elements) { checked(H5Awrite(attribute.get(), type.get(), elements)); });
}

void write_elements(hid_t dataset, const Content& content) {
  if (!has_elements(content)) return;
  const TypeHandle type = make_type(content.type);
  with_elements(content, [&](const void* elements) {
    checked(H5Dwrite(dataset, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, elements));
  });
}

}  // namespace shard::hdf5
