#include <algorithm>
#include <type_traits>

#include "formats/hdf5/reply.h"

namespace shard::hdf5 {

namespace {

/// Appends to the payload. Counts have 32 bits; a larger one could not fit in a frame.
class Encoder {
 public:
  template <class Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number> || std::is_enum_v<Number>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class Plain>
  void plain(std::span<const Plain> values) {
    static_assert(std::is_trivially_copyable_v<Plain>);
    number(static_cast<std::uint32_t>(values.size()));
    out_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  void dims(const std::vector<std::int64_t>& values) { plain(std::span<const std::int64_t>(values)); }
  void text(std::string_view value) { plain(std::span<const char>(value.data(), value.size())); }
  void texts(const std::vector<std::string_view>& values) {
    number(static_cast<std::uint32_t>(values.size()));
    for (const std::string_view each : values) text(each);
  }

  void type(const Type& type);
  void space(const Space& space) {
    number(space.kind);
    dims(space.shape);
  }
  void attributes(const std::vector<Attribute>& attributes);
  void filters(const std::vector<Filter>& filters);
  void mappings(const std::vector<VirtualMapping>& mappings);

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// A type: kind, bytes, five flags, padding, ten numbers, tag, dimensions, then the number of members and each member's
// name, offset, value and type. In an enum only the first member has a type, the base. Decoder::type reads the same.
void Encoder::type(const Type& type) {
  number(type.kind);
  number(type.bytes);
  for (const bool each : {type.big_endian, type.is_signed, type.is_variable, type.is_utf8, type.fields.implied_one}) {
    number(static_cast<std::uint8_t>(each));
  }
  number(type.padding);
  const FloatFields& fields = type.fields;
  for (const std::uint32_t each : {type.precision, type.offset, fields.precision, fields.offset, fields.sign_at,
                                   fields.exponent_at, fields.exponent_bits, fields.mantissa_at, fields.mantissa_bits})
    number(each);
  number(fields.bias);
  text(type.tag);
  dims(type.dims);
  number(static_cast<std::uint32_t>(type.inner.size()));
  for (std::size_t i = 0; i < type.inner.size(); ++i) {
    const Type::Member& member = type.inner[i];
    text(member.name);
    number(member.at);
    number(member.value);
    if (type.kind != TypeClass::kEnum || i == 0) this->type(member.type);
  }
}

void Encoder::attributes(const std::vector<Attribute>& attributes) {
  number(static_cast<std::uint32_t>(attributes.size()));
  for (const Attribute& each : attributes) {
    text(each.name);
    type(each.content.type);
    space(each.content.space);
    plain(each.content.data);
    texts(each.content.strings);
  }
}

void Encoder::filters(const std::vector<Filter>& filters) {
  number(static_cast<std::uint32_t>(filters.size()));
  for (const Filter& each : filters) {
    number(each.kind);
    number(each.parameter);
  }
}

void Encoder::mappings(const std::vector<VirtualMapping>& mappings) {
  number(static_cast<std::uint32_t>(mappings.size()));
  for (const VirtualMapping& mapping : mappings) {
    text(mapping.file);
    text(mapping.dataset);
    number(static_cast<std::uint32_t>(mapping.boxes.size()));
    for (const VirtualBox& box : mapping.boxes) {
      for (const auto* each : {&box.offsets, &box.sizes, &box.source_offsets, &box.source_sizes}) dims(*each);
    }
  }
}

}  // namespace

std::string encode(const Entry& entry) {
  Encoder out;
  out.number(entry.kind);
  out.texts(entry.links);
  out.number(entry.object);
  out.attributes(entry.attributes);
  if (entry.kind == EntryKind::kGroup) {
    out.number(entry.members);
    return out.take();
  }
  if (entry.kind == EntryKind::kUnread) {
    out.text(entry.why.substr(0, kMostFailureBytes));
    return out.take();
  }
  out.type(entry.type);
  out.space(entry.space);
  out.number(entry.storage);
  out.texts(entry.strings);
  out.plain(entry.compact);
  out.number(entry.offset);
  out.number(entry.stored_bytes);
  out.dims(entry.chunk_shape);
  out.filters(entry.filters);
  out.plain(std::span<const ChunkPlace>(entry.chunks));
  out.plain(std::span<const std::byte>(entry.fill));
  out.mappings(entry.mappings);
  return out.take();
}

std::string encode_failure(std::string_view text, bool is_unsupported) {
  return std::string(1, is_unsupported ? '\1' : '\0').append(text.substr(0, kMostFailureBytes));
}

}  // namespace shard::hdf5
