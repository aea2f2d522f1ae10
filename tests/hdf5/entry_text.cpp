#include "tests/hdf5/entry_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shard::hdf5 {

namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(each));
  return text;
}

std::string to_text(const Type& type) {
  constexpr std::string_view kNames[] = {"integer",  "float", "string",   "opaque",    "bitfield", "enum",
                                         "compound", "array", "variable", "reference", "time",     "complex"};
  std::string text = fmt::format("{}{}", kNames[static_cast<int>(type.kind)], type.bytes);
  if (type.big_endian) text += " big-endian";
  if (type.is_signed) text += " signed";
  if (type.is_variable) text += " variable";
  if (type.is_utf8) text += " UTF-8";
  constexpr std::string_view kPaddings[] = {"", " padded with NUL", " padded with spaces"};
  text += kPaddings[static_cast<int>(type.padding)];
  if (type.precision != 0) text += fmt::format(" bits {}+{}", type.offset, type.precision);
  if (type.kind == TypeClass::kFloat) {
    const FloatFields& f = type.fields;
    text += fmt::format(" bits {}+{} s{} e{}+{} m{}+{} bias {}{}", f.offset, f.precision, f.sign_at, f.exponent_at,
                        f.exponent_bits, f.mantissa_at, f.mantissa_bits, f.bias, f.implied_one ? "" : " explicit");
  }
  if (!type.tag.empty()) text += fmt::format(" '{}'", type.tag);
  if (!type.dims.empty()) text += fmt::format(" {}", type.dims);
  if (type.inner.empty()) return text;
  text += " (";
  for (const Type::Member& each : type.inner) {
    if (&each != &type.inner.front()) text += ", ";
    const bool is_name = type.kind == TypeClass::kEnum && &each != &type.inner.front();
    if (type.kind == TypeClass::kCompound) text += fmt::format("{}@{}: ", each.name, each.at);
    text += is_name ? fmt::format("{}={}", each.name, each.value) : to_text(each.type);
  }
  return text + ")";
}

std::string to_text(const Space& space) {
  if (space.kind == SpaceKind::kNull) return "null";
  return space.kind == SpaceKind::kScalar ? "scalar" : fmt::format("{}", space.shape);
}

std::string to_text(const Content& content) {
  const std::string head = fmt::format("{} {}", to_text(content.type), to_text(content.space));
  return content.strings.empty() ? fmt::format("{} {}", head, hex(content.data))
                                 : fmt::format("{} {}", head, content.strings);
}

std::string chunks_text(const Entry& entry) {
  std::string text = fmt::format("chunks {}", entry.chunk_shape);
  constexpr std::string_view kFilters[] = {"deflate", "shuffle", "fletcher32", "lzf"};
  for (const Filter& each : entry.filters) {
    text += fmt::format(" {}:{}", kFilters[static_cast<int>(each.kind)], each.parameter);
  }
  for (const ChunkPlace& each : entry.chunks) {
    text += fmt::format(" {}@{}+{}", each.number, each.offset, each.bytes);
    if (each.skipped != 0) text += fmt::format("!{:x}", each.skipped);
  }
  return text;
}

std::string mappings_text(const Entry& entry) {
  std::string text = "virtual";
  for (const VirtualMapping& each : entry.mappings) {
    text += fmt::format(" {}:{}", each.file, each.dataset);
    for (const VirtualBox& box : each.boxes) {
      text += fmt::format(" {}+{}<-{}+{}", box.offsets, box.sizes, box.source_offsets, box.source_sizes);
    }
  }
  return text;
}

std::string storage_text(const Entry& entry) {
  if (entry.type.kind == TypeClass::kString) return fmt::format("{}", entry.strings);
  switch (entry.storage) {
    case StorageKind::kCompact:
      return "compact " + hex(entry.compact);
    case StorageKind::kContiguous:
      return fmt::format("at {}+{}", entry.offset, entry.stored_bytes);
    case StorageKind::kChunked:
      return chunks_text(entry);
    case StorageKind::kVirtual:
      return mappings_text(entry);
  }
  return {};
}

}  // namespace

std::string to_text(const Entry& entry) {
  constexpr std::string_view kKinds[] = {"group", "dataset", "unread"};
  std::string text = fmt::format("{} '{}'", kKinds[static_cast<int>(entry.kind)], fmt::join(entry.links, "/"));
  if (entry.kind == EntryKind::kGroup) {
    text += fmt::format(" of {}", entry.members);
  } else if (entry.kind == EntryKind::kUnread) {
    text += fmt::format(" {}", entry.why);
  } else {
    text += fmt::format(" {} {} {}", to_text(entry.type), to_text(entry.space), storage_text(entry));
    if (!entry.fill.empty()) text += " fill " + hex(entry.fill);
  }
  for (const Attribute& each : entry.attributes) text += fmt::format("; {}: {}", each.name, to_text(each.content));
  return text;
}

}  // namespace shard::hdf5
