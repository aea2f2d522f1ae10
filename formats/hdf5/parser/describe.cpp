#include "formats/hdf5/parser/describe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "formats/hdf5/reply.h"

namespace shard::hdf5 {

namespace {

using Text = std::unique_ptr<char, decltype(&H5free_memory)>;

/// Takes a text that libhdf5 allocated. Only `H5free_memory` may free it, because the library may use a different heap.
Text owned(char* text) {
  if (text == nullptr) throw_library_error();
  return {text, &H5free_memory};
}

Type describe_at(hid_t type, int depth);

bool is_big_endian(hid_t type) {
  switch (checked(H5Tget_order(type))) {
    case H5T_ORDER_LE:
    case H5T_ORDER_NONE:
      return false;
    case H5T_ORDER_BE:
      return true;
    default:
      throw_unsupported("numbers in the byte order of VAX are not supported");
  }
}

template <class Number>
std::uint32_t narrow(Number value) {
  if (value > std::numeric_limits<std::uint32_t>::max()) throw_malformed("a datatype of more than 4 GiB");
  return static_cast<std::uint32_t>(value);
}

/// Integers and bit fields: the bits that count, and their position in the bytes.
void describe_bits(hid_t type, Type& result) {
  result.big_endian = is_big_endian(type);
  result.precision = narrow(H5Tget_precision(type));
  result.offset = static_cast<std::uint32_t>(checked(H5Tget_offset(type)));
}

/// All fields of a float, because HDF5 has no name for bfloat16 or the 8-bit floats; only the fields distinguish them.
void describe_float(hid_t type, Type& result) {
  result.big_endian = is_big_endian(type);
  size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
  checked(H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits));
  FloatFields& fields = result.fields;
  fields.precision = narrow(H5Tget_precision(type));
  fields.offset = static_cast<std::uint32_t>(checked(H5Tget_offset(type)));
  fields.sign_at = narrow(sign);
  fields.exponent_at = narrow(exponent);
  fields.exponent_bits = narrow(exponent_bits);
  fields.mantissa_at = narrow(mantissa);
  fields.mantissa_bits = narrow(mantissa_bits);
  fields.bias = H5Tget_ebias(type);
  fields.implied_one = checked(H5Tget_norm(type)) == H5T_NORM_IMPLIED;
}

/// Extends the sign of an integer that is narrower than 8 bytes.
std::int64_t integer_of(const unsigned char* bytes, const Type& type) {
  std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < type.bytes; ++i) {
    value = value << 8 | bytes[type.big_endian ? i : type.bytes - 1 - i];
  }
  const unsigned unused = 64 - 8 * type.bytes;
  const auto at_top = static_cast<std::int64_t>(value << unused);
  return type.is_signed ? at_top >> unused : static_cast<std::int64_t>(value);
}

/// Adds the type of elements: of an array, an enum or a sequence of variable length.
void describe_base(hid_t type, Type& result, int depth) {
  const TypeHandle base(H5Tget_super(type));
  result.inner.push_back({{}, 0, 0, describe_at(base.get(), depth + 1)});
}

/// `inner` gets the base type first, then a member per name with its value.
void describe_enum(hid_t type, Type& result, int depth) {
  describe_base(type, result, depth);
  const std::uint32_t bytes = result.inner[0].type.bytes;
  if (bytes == 0 || bytes > sizeof(std::int64_t)) throw_unsupported("enums of more than 8 bytes are not supported");
  const int count = checked(H5Tget_nmembers(type));
  for (int i = 0; i < count; ++i) {
    unsigned char value[sizeof(std::int64_t)] = {};
    checked(H5Tget_member_value(type, static_cast<unsigned>(i), value));
    const Text name = owned(H5Tget_member_name(type, static_cast<unsigned>(i)));
    result.inner.push_back({name.get(), 0, integer_of(value, result.inner[0].type), {}});
  }
}

void describe_compound(hid_t type, Type& result, int depth) {
  const int count = checked(H5Tget_nmembers(type));
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<unsigned>(i);
    const TypeHandle member(H5Tget_member_type(type, index));
    const Text name = owned(H5Tget_member_name(type, index));
    const std::uint32_t at = narrow(H5Tget_member_offset(type, index));
    result.inner.push_back({name.get(), at, 0, describe_at(member.get(), depth + 1)});
  }
}

void describe_array(hid_t type, Type& result, int depth) {
  std::vector<hsize_t> dims(static_cast<std::size_t>(checked(H5Tget_array_ndims(type))));
  checked(H5Tget_array_dims2(type, dims.data()));
  std::ranges::transform(dims, std::back_inserter(result.dims), signed_of);
  describe_base(type, result, depth);
}

void describe_string(hid_t type, Type& result) {
  result.is_variable = checked(H5Tis_variable_str(type)) > 0;
  result.is_utf8 = checked(H5Tget_cset(type)) == H5T_CSET_UTF8;
  switch (checked(H5Tget_strpad(type))) {
    case H5T_STR_SPACEPAD:
      result.padding = StringPadding::kSpace;
      break;
    case H5T_STR_NULLPAD:
      result.padding = StringPadding::kNull;
      break;
    default:
      result.padding = StringPadding::kNullTerminated;
  }
}

TypeClass class_of(hid_t type) {
  constexpr std::pair<H5T_class_t, TypeClass> kClasses[] = {{H5T_INTEGER, TypeClass::kInteger},
                                                            {H5T_FLOAT, TypeClass::kFloat},
                                                            {H5T_STRING, TypeClass::kString},
                                                            {H5T_OPAQUE, TypeClass::kOpaque},
                                                            {H5T_BITFIELD, TypeClass::kBitfield},
                                                            {H5T_ENUM, TypeClass::kEnum},
                                                            {H5T_COMPOUND, TypeClass::kCompound},
                                                            {H5T_ARRAY, TypeClass::kArray},
                                                            {H5T_VLEN, TypeClass::kVariableLength},
                                                            {H5T_REFERENCE, TypeClass::kReference},
                                                            {H5T_TIME, TypeClass::kTime}};
  const H5T_class_t found = checked(H5Tget_class(type));
  for (const auto& [known, kind] : kClasses) {
    if (known == found) return kind;
  }
  throw_unsupported("a datatype of an unknown class");
}

/// The depth is limited, because a file may nest types as deep as it likes.
Type describe_at(hid_t type, int depth) {
  if (depth > kMostTypeDepth) throw_unsupported("datatypes nest too deep");
  Type result;
  result.kind = class_of(type);
  result.bytes = narrow(H5Tget_size(type));
  if (result.bytes == 0) throw_library_error();
  switch (result.kind) {
    case TypeClass::kInteger:
      describe_bits(type, result);
      result.is_signed = checked(H5Tget_sign(type)) == H5T_SGN_2;
      break;
    case TypeClass::kBitfield:
      describe_bits(type, result);
      break;
    case TypeClass::kFloat:
      describe_float(type, result);
      break;
    case TypeClass::kString:
      describe_string(type, result);
      break;
    case TypeClass::kOpaque:
      result.tag = owned(H5Tget_tag(type)).get();
      break;
    case TypeClass::kEnum:
      describe_enum(type, result, depth);
      break;
    case TypeClass::kCompound:
      describe_compound(type, result, depth);
      break;
    case TypeClass::kArray:
      describe_array(type, result, depth);
      break;
    case TypeClass::kVariableLength:
      describe_base(type, result, depth);
      break;
    case TypeClass::kReference:
    case TypeClass::kTime:
    case TypeClass::kComplex:
      break;
  }
  return result;
}

}  // namespace

Type describe_type(hid_t type) { return describe_at(type, 0); }

bool is_plain(const Type& type) {
  switch (type.kind) {
    case TypeClass::kInteger:
    case TypeClass::kFloat:
    case TypeClass::kBitfield:
    case TypeClass::kOpaque:
    case TypeClass::kEnum:
      return true;
    case TypeClass::kCompound:
    case TypeClass::kArray:
      return std::ranges::all_of(type.inner, [](const Type::Member& each) {
        return each.type.kind == TypeClass::kString ? !each.type.is_variable : is_plain(each.type);
      });
    default:
      return false;
  }
}

std::int64_t signed_of(hsize_t value) {
  if (value > static_cast<hsize_t>(std::numeric_limits<std::int64_t>::max())) {
    throw_malformed("a size or offset of more than 63 bits");
  }
  return static_cast<std::int64_t>(value);
}

Space describe_space(hid_t space) {
  Space result;
  switch (checked(H5Sget_simple_extent_type(space))) {
    case H5S_NULL:
      result.kind = SpaceKind::kNull;
      return result;
    case H5S_SCALAR:
      return result;
    default:
      break;
  }
  result.kind = SpaceKind::kSimple;
  std::vector<hsize_t> dims(static_cast<std::size_t>(checked(H5Sget_simple_extent_ndims(space))));
  checked(H5Sget_simple_extent_dims(space, dims.data(), nullptr));
  std::ranges::transform(dims, std::back_inserter(result.shape), signed_of);
  return result;
}

std::int64_t elements_of(const Space& space) {
  if (space.kind == SpaceKind::kNull) return 0;
  std::int64_t elements = 1;
  if (std::ranges::find(space.shape, 0) != space.shape.end()) return 0;
  for (const std::int64_t size : space.shape) {
    if (__builtin_mul_overflow(elements, size, &elements)) throw_malformed("a shape of more than 2^63 elements");
  }
  return elements;
}

namespace {

/// Reads all elements of `type` into memory.
using Read = std::function<herr_t(hid_t type, void* out)>;

std::string_view without_padding(std::string_view text, H5T_str_t padding) {
  if (padding == H5T_STR_NULLTERM) return text.substr(0, text.find('\0'));
  const char pad = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
  while (!text.empty() && text.back() == pad) text.remove_suffix(1);
  return text;
}

/// One read for all strings of a fixed size. The results are views into the arena.
std::vector<std::string_view> fixed_strings(hid_t type, std::int64_t count, const Read& read, EntryArena& arena) {
  const std::size_t bytes = H5Tget_size(type);
  const H5T_str_t padding = checked(H5Tget_strpad(type));
  std::string& all = arena.room(count, static_cast<std::int64_t>(bytes));
  checked(read(type, all.data()));
  std::vector<std::string_view> result;
  for (std::size_t at = 0; at < all.size(); at += bytes) {
    result.push_back(without_padding(std::string_view(all).substr(at, bytes), padding));
  }
  return result;
}

/// libhdf5's copies of strings of variable length, which the destructor frees.
class VariableStrings {
 public:
  VariableStrings(hid_t type, hid_t space, std::string& room) : type_(type), space_(space), room_(room) {}
  ~VariableStrings() { H5Dvlen_reclaim(type_, space_, H5P_DEFAULT, room_.data()); }
  VariableStrings(const VariableStrings&) = delete;
  VariableStrings& operator=(const VariableStrings&) = delete;
  std::span<const char* const> texts() const {
    return {reinterpret_cast<const char* const*>(room_.data()), room_.size() / sizeof(char*)};
  }

 private:
  hid_t type_, space_;
  std::string& room_;
};

std::vector<std::string_view> variable_strings(hid_t type, hid_t space, std::int64_t count, const Read& read,
                                               EntryArena& arena) {
  std::string& room = arena.room(count, sizeof(char*));
  const VariableStrings strings(type, space, room);
  checked(read(type, room.data()));
  std::vector<std::string_view> result;
  for (const char* const text : strings.texts()) {
    result.push_back(text == nullptr ? std::string_view() : arena.text(text));
  }
  return result;
}

std::vector<std::string_view> strings_of(hid_t type, hid_t space, std::int64_t count, const Read& read,
                                         EntryArena& arena) {
  if (count == 0) return {};
  const bool is_variable = checked(H5Tis_variable_str(type)) > 0;
  return is_variable ? variable_strings(type, space, count, read, arena) : fixed_strings(type, count, read, arena);
}

/// All elements as stored, without conversion: the memory type is the file's own.
std::span<const std::byte> elements(hid_t type, std::int64_t count, const Read& read, EntryArena& arena) {
  if (count == 0) return {};
  std::string& room = arena.room(count, static_cast<std::int64_t>(H5Tget_size(type)));
  checked(read(type, room.data()));
  return std::as_bytes(std::span(room));
}

/// Contents of other types (references, sequences of variable length) stay empty; only the type and the shape are
/// reported.
Content read_attribute(hid_t attribute, EntryArena& arena) {
  const TypeHandle type(H5Aget_type(attribute));
  const SpaceHandle space(H5Aget_space(attribute));
  Content result;
  result.type = describe_type(type.get());
  result.space = describe_space(space.get());
  const std::int64_t count = elements_of(result.space);
  const Read read = [&](hid_t of, void* out) { return H5Aread(attribute, of, out); };
  if (result.type.kind == TypeClass::kString) {
    result.strings = strings_of(type.get(), space.get(), count, read, arena);
  } else if (is_plain(result.type)) {
    result.data = elements(type.get(), count, read, arena);
  }
  return result;
}

Read reader_of(hid_t dataset) {
  return [dataset](hid_t of, void* out) { return H5Dread(dataset, of, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); };
}

/// The callback of H5Aiterate2, called from C, so it may not throw.
herr_t take_name(hid_t, const char* name, const H5A_info_t*, void* names) noexcept {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

std::vector<std::string> names_of_attributes(hid_t object) {
  std::vector<std::string> names;
  checked(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, take_name, &names));
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<Attribute> read_attributes(hid_t object, EntryArena& arena) {
  std::vector<Attribute> result;
  for (const std::string& name : names_of_attributes(object)) {
    const AttributeHandle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT));
    result.push_back({arena.text(name), read_attribute(attribute.get(), arena)});
  }
  return result;
}

std::vector<std::string_view> read_strings(hid_t dataset, const Space& space, EntryArena& arena) {
  const TypeHandle type(H5Dget_type(dataset));
  const SpaceHandle file_space(H5Dget_space(dataset));
  return strings_of(type.get(), file_space.get(), elements_of(space), reader_of(dataset), arena);
}

std::span<const std::byte> read_elements(hid_t dataset, const Space& space, EntryArena& arena) {
  const TypeHandle type(H5Dget_type(dataset));
  return elements(type.get(), elements_of(space), reader_of(dataset), arena);
}

}  // namespace shard::hdf5
