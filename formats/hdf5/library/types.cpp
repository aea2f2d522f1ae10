#include "formats/hdf5/library/types.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

namespace shard::hdf5 {

namespace {

TypeHandle copy_of(hid_t type) { return TypeHandle(H5Tcopy(type)); }

TypeHandle make_integer(const Type& type) {
  TypeHandle made = copy_of(type.is_signed ? H5T_STD_I64LE : H5T_STD_U64LE);
  checked(H5Tset_size(made.get(), type.bytes));
  return made;
}

/// Fields first, as long as the type is wide, then what is narrower.
TypeHandle make_float(const Type& type) {
  TypeHandle made = copy_of(H5T_IEEE_F64LE);
  const FloatFields& fields = type.fields;
  if (type.bytes == 8) return made;
  if (type.bytes == 4) return copy_of(H5T_IEEE_F32LE);
  checked(H5Tset_fields(made.get(), fields.sign_at, fields.exponent_at, fields.exponent_bits, fields.mantissa_at,
                        fields.mantissa_bits));
  checked(H5Tset_precision(made.get(), fields.precision));
  checked(H5Tset_size(made.get(), type.bytes));
  checked(H5Tset_ebias(made.get(), fields.bias));
  return made;
}

TypeHandle make_enum(const Type& type) {
  assert(!type.inner.empty() && type.bytes == 1);
  TypeHandle made(H5Tenum_create(make_type(type.inner[0].type).get()));
  for (const Type::Member& member : std::span(type.inner).subspan(1)) {
    const auto value = static_cast<std::int8_t>(member.value);
    checked(H5Tenum_insert(made.get(), member.name.c_str(), &value));
  }
  return made;
}

TypeHandle make_compound(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_COMPOUND, type.bytes));
  for (const Type::Member& member : type.inner) {
    checked(H5Tinsert(made.get(), member.name.c_str(), member.at, make_type(member.type).get()));
  }
  return made;
}

TypeHandle make_string(const Type& type) {
  TypeHandle made = copy_of(H5T_C_S1);
  checked(H5Tset_size(made.get(), type.bytes));
  checked(H5Tset_strpad(made.get(), H5T_STR_NULLPAD));
  checked(H5Tset_cset(made.get(), H5T_CSET_UTF8));
  return made;
}

TypeHandle make_opaque(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_OPAQUE, type.bytes));
  if (!type.tag.empty()) checked(H5Tset_tag(made.get(), type.tag.c_str()));
  return made;
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
    case TypeClass::kCompound:
      return make_compound(type);
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
  if (content.space.kind != SpaceKind::kNull) checked(H5Awrite(attribute.get(), type.get(), content.data.data()));
}

}  // namespace shard::hdf5
