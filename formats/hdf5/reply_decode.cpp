#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/hdf5/reply.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

/// Throws for a description that no valid file can have.
[[noreturn]] void throw_contradiction(std::string_view what) {
  throw Error(ErrorCode::kCorruption, fmt::format("cannot read the HDF5 file: {}", what))
      .of_kind(FindingKind::kBadHeader);
}

/// Decodes the payload. Every count is compared with the bytes left before memory is allocated for it.
class Decoder {
 public:
  Decoder(std::span<const std::byte> payload, Arena& arena) : left_(payload), arena_(arena) {}

  template <class Number>
  Number number() {
    static_assert(std::is_arithmetic_v<Number>);
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class Enum>
  Enum one_of(Enum last) {
    const auto value = number<std::underlying_type_t<Enum>>();
    if (value > static_cast<std::underlying_type_t<Enum>>(last)) throw_bad_answer("a kind that does not exist");
    return static_cast<Enum>(value);
  }
  /// Does not cast to bool, because a value that is neither 0 nor 1 would be undefined behaviour later.
  bool flag() {
    const auto value = number<std::uint8_t>();
    if (value > 1) throw_bad_answer("a flag is neither 0 nor 1");
    return value == 1;
  }
  /// A number that is not negative.
  std::int64_t natural() {
    const auto value = number<std::int64_t>();
    if (value < 0) throw_bad_answer("a number is negative");
    return value;
  }
  /// The number of items that follow, each of at least `least` bytes.
  std::size_t count(std::size_t least) {
    const auto value = number<std::uint32_t>();
    if (value > left_.size() / least) throw_bad_answer("more items than it has bytes for");
    return value;
  }
  /// Views into the payload, which must outlive the entry.
  std::span<const std::byte> bytes() { return take(count(1)); }
  std::string_view text() { return as_text(bytes()); }
  std::vector<std::string_view> texts() {
    std::vector<std::string_view> result(count(sizeof(std::uint32_t)));
    for (std::string_view& each : result) each = text();
    return result;
  }
  std::vector<std::int64_t> dims() {
    std::vector<std::int64_t> result(count(sizeof(std::int64_t)));
    for (std::int64_t& each : result) each = natural();
    return result;
  }

  Type type(int depth = 0);
  Space space();
  std::vector<Attribute> attributes();
  std::vector<Filter> filters();
  std::vector<ChunkPlace> chunks();
  std::vector<VirtualMapping> mappings();

  void end() const {
    if (!left_.empty()) throw_bad_answer("bytes after its end");
  }

 private:
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > left_.size()) throw_bad_answer("it ends early");
    const std::span<const std::byte> taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> left_;
  Arena& arena_;
};

/// The order of the fields is that of the encoder in reply_encode.cpp.
Type Decoder::type(int depth) {
  if (depth > kMostTypeDepth) throw_bad_answer("datatypes nest too deep");
  Type type;
  type.kind = one_of(TypeClass::kComplex);
  type.bytes = number<std::uint32_t>();
  FloatFields& fields = type.fields;
  for (bool* each : {&type.big_endian, &type.is_signed, &type.is_variable, &type.is_utf8, &fields.implied_one})
    *each = flag();
  type.padding = one_of(StringPadding::kSpace);
  for (std::uint32_t* each : {&type.precision, &type.offset, &fields.precision, &fields.offset, &fields.sign_at,
                              &fields.exponent_at, &fields.exponent_bits, &fields.mantissa_at, &fields.mantissa_bits})
    *each = number<std::uint32_t>();
  fields.bias = number<std::uint64_t>();
  type.tag = text();
  type.dims = dims();
  constexpr std::size_t kLeastMember = 2 * sizeof(std::uint32_t) + sizeof(std::int64_t);
  type.inner.resize(count(kLeastMember));
  arena_.charge(Charge::kVisits, static_cast<std::int64_t>(type.inner.size()));
  for (std::size_t i = 0; i < type.inner.size(); ++i) {
    Type::Member& member = type.inner[i];
    member.name = text();
    member.at = number<std::uint32_t>();
    member.value = number<std::int64_t>();
    if (type.kind != TypeClass::kEnum || i == 0) member.type = this->type(depth + 1);
  }
  return type;
}

Space Decoder::space() {
  Space space;
  space.kind = one_of(SpaceKind::kSimple);
  space.shape = dims();
  if (space.kind != SpaceKind::kSimple && !space.shape.empty()) throw_bad_answer("a scalar has a shape");
  checked_numel(space.shape);
  return space;
}

std::int64_t elements_of(const Space& space) { return space.kind == SpaceKind::kNull ? 0 : checked_numel(space.shape); }

/// Checks that there are as many bytes or strings as elements, or neither, for types that the parser does not read.
void check_content(const Type& type, const Space& space, std::size_t bytes, std::size_t strings) {
  const std::int64_t elements = elements_of(space);
  const auto is = [](std::size_t found, std::int64_t wanted) { return static_cast<std::int64_t>(found) == wanted; };
  const bool fits = type.kind == TypeClass::kString
                        ? bytes == 0 && is(strings, elements)
                        : strings == 0 && (bytes == 0 || is(bytes, checked_mul(elements, type.bytes)));
  if (!fits) throw_bad_answer("contents that are not as long as their shape");
}

std::vector<Attribute> Decoder::attributes() {
  std::vector<Attribute> result;
  const std::size_t number = count(sizeof(std::uint32_t));
  for (std::size_t i = 0; i < number; ++i) {
    Attribute each;
    each.name = text();
    each.content.type = type();
    each.content.space = space();
    each.content.data = bytes();
    each.content.strings = texts();
    check_content(each.content.type, each.content.space, each.content.data.size(), each.content.strings.size());
    result.push_back(std::move(each));
  }
  return result;
}

std::vector<Filter> Decoder::filters() {
  std::vector<Filter> result(count(sizeof(FilterKind) + sizeof(std::uint32_t)));
  if (result.size() > 32) throw_bad_answer("more than 32 filters");
  for (Filter& each : result) {
    each.kind = one_of(FilterKind::kLzf);
    each.parameter = number<std::uint32_t>();
  }
  return result;
}

/// Copies the chunks as a block, because there may be millions of them.
std::vector<ChunkPlace> Decoder::chunks() {
  std::vector<ChunkPlace> result(count(sizeof(ChunkPlace)));
  arena_.charge(Charge::kChunks, static_cast<std::int64_t>(result.size()));
  const std::span<const std::byte> data = take(result.size() * sizeof(ChunkPlace));
  if (!data.empty()) std::memcpy(result.data(), data.data(), data.size());
  return result;
}

std::vector<VirtualMapping> Decoder::mappings() {
  std::vector<VirtualMapping> result(count(3 * sizeof(std::uint32_t)));
  arena_.charge(Charge::kPlacedBoxes, static_cast<std::int64_t>(result.size()));
  for (VirtualMapping& mapping : result) {
    mapping.file = text();
    mapping.dataset = text();
    mapping.boxes.resize(count(4 * sizeof(std::uint32_t)));
    arena_.charge(Charge::kPlacedBoxes, static_cast<std::int64_t>(mapping.boxes.size()));
    for (VirtualBox& box : mapping.boxes) {
      for (auto* each : {&box.offsets, &box.sizes, &box.source_offsets, &box.source_sizes}) *each = dims();
    }
  }
  return result;
}

[[noreturn]] void throw_outside(std::string_view what, std::int64_t end, std::int64_t file_bytes) {
  throw Error(ErrorCode::kCorruption, fmt::format("cannot read the HDF5 file: {} ends after the file", what))
      .of_kind(FindingKind::kOutOfBounds)
      .expected(fmt::format("at most {}", file_bytes))
      .found(end);
}

/// An offset of -1 means that the file has no storage for the dataset, so that all elements are its fill value.
void check_contiguous(const Entry& entry, std::int64_t file_bytes) {
  if (entry.offset < -1 || entry.stored_bytes < 0) throw_bad_answer("a negative offset");
  if (entry.offset == -1) return;
  const std::int64_t wanted = checked_mul(elements_of(entry.space), entry.type.bytes);
  if (entry.stored_bytes < wanted) {
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: a dataset has less storage than elements")
        .of_kind(FindingKind::kOutOfBounds)
        .expected(fmt::format("at least {} bytes", wanted))
        .found(entry.stored_bytes);
  }
  const std::int64_t end = checked_add(entry.offset, entry.stored_bytes);
  if (end > file_bytes) throw_outside("a dataset", end, file_bytes);
}

/// Absent chunks are allowed (their elements are the fill value), so the numbers only have to rise.
void check_chunks(const Entry& entry, std::int64_t file_bytes) {
  const std::vector<std::int64_t>& shape = entry.space.shape;
  if (entry.chunk_shape.size() != shape.size() || shape.empty()) throw_bad_answer("a chunk of a different rank");
  std::int64_t grid = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (entry.chunk_shape[i] <= 0) throw_bad_answer("a chunk without elements");
    grid = checked_mul(grid, boxes_along(shape[i], entry.chunk_shape[i]));
  }
  const std::int64_t chunk_bytes = checked_mul(checked_numel(entry.chunk_shape), entry.type.bytes);
  std::int64_t last = -1;
  for (const ChunkPlace& chunk : entry.chunks) {
    if (chunk.number <= last || chunk.number >= grid) throw_bad_answer("chunks outside their grid or out of order");
    if (chunk.offset < 0) throw_bad_answer("a negative offset");
    if (entry.filters.empty() && chunk.bytes != chunk_bytes)
      throw_contradiction("a chunk without filters does not have the size of its shape");
    const std::int64_t end = checked_add(chunk.offset, chunk.bytes);
    if (end > file_bytes) throw_outside("a chunk", end, file_bytes);
    last = chunk.number;
  }
}

void check_box(const VirtualBox& box, const std::vector<std::int64_t>& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size())
    throw_bad_answer("a box of a different rank");
  if (box.source_offsets.size() != box.source_sizes.size()) throw_bad_answer("a source box of two ranks");
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (checked_add(box.offsets[i], box.sizes[i]) > shape[i])
      throw_contradiction("a virtual dataset maps a box outside its shape");
  }
  for (std::size_t i = 0; i < box.source_sizes.size(); ++i) checked_add(box.source_offsets[i], box.source_sizes[i]);
  if (checked_numel(box.sizes) != checked_numel(box.source_sizes)) throw_bad_answer("boxes of two sizes");
}

/// The parser runs on untrusted bytes in a process of its own, so its reply is checked as if it were a file: the
/// program later reads at these offsets.
void check_dataset(const Entry& entry, std::int64_t file_bytes) {
  if (entry.type.kind == TypeClass::kString) {
    check_content(entry.type, entry.space, 0, entry.strings.size());
    return;
  }
  checked_mul(elements_of(entry.space), entry.type.bytes);
  if (!entry.strings.empty()) throw_bad_answer("strings in a dataset of numbers");
  if (!entry.fill.empty() && entry.fill.size() != entry.type.bytes) throw_bad_answer("a fill value of the wrong size");
  switch (entry.storage) {
    case StorageKind::kCompact:
      return check_content(entry.type, entry.space, entry.compact.size(), 0);
    case StorageKind::kContiguous:
      return check_contiguous(entry, file_bytes);
    case StorageKind::kChunked:
      return check_chunks(entry, file_bytes);
    case StorageKind::kVirtual:
      for (const VirtualMapping& mapping : entry.mappings) {
        for (const VirtualBox& box : mapping.boxes) check_box(box, entry.space.shape);
      }
  }
}

/// The fields after the kind and the links of an entry. Each kind has its own fields.
void decode_rest(Decoder& in, Entry& entry, std::int64_t file_bytes) {
  entry.object = in.number<std::uint64_t>();
  entry.attributes = in.attributes();
  if (entry.kind == EntryKind::kGroup) {
    entry.members = in.natural();
    return in.end();
  }
  if (entry.kind == EntryKind::kUnread) {
    entry.why = in.text();
    if (entry.why.empty() || entry.why.size() > kMostFailureBytes) throw_bad_answer("a reason of the wrong length");
    return in.end();
  }
  entry.type = in.type();
  entry.space = in.space();
  entry.storage = in.one_of(StorageKind::kVirtual);
  entry.strings = in.texts();
  entry.compact = in.bytes();
  entry.offset = in.number<std::int64_t>();
  entry.stored_bytes = in.number<std::int64_t>();
  entry.chunk_shape = in.dims();
  entry.filters = in.filters();
  entry.chunks = in.chunks();
  const std::span<const std::byte> fill = in.bytes();
  entry.fill.assign(fill.begin(), fill.end());
  entry.mappings = in.mappings();
  in.end();
  check_dataset(entry, file_bytes);
}

}  // namespace

Entry decode_entry(std::span<const std::byte> payload, std::int64_t file_bytes, Arena& arena) {
  arena.charge(Charge::kEntries);
  Decoder in(payload, arena);
  Entry entry;
  entry.kind = in.one_of(EntryKind::kUnread);
  entry.links = in.texts();
  try {
    decode_rest(in, entry, file_bytes);
  } catch (Error& error) {
    throw error.of_tensor(fmt::format("{}", fmt::join(entry.links, ".")));
  }
  return entry;
}

void throw_bad_answer(std::string_view what) {
  throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: its parser gave a malformed answer")
      .of_kind(FindingKind::kBadHeader)
      .because(what);
}

void throw_failure(std::span<const std::byte> payload) {
  if (payload.size() < 2 || payload.size() > kMostFailureBytes + 1 || std::to_integer<int>(payload[0]) > 1) {
    throw_bad_answer("a failure of the wrong length or kind");
  }
  const bool is_unsupported = payload[0] == std::byte{1};
  const std::string text(as_text(payload.subspan(1)));
  Error error(is_unsupported ? ErrorCode::kUnsupported : ErrorCode::kCorruption, "cannot read the HDF5 file: " + text);
  if (!is_unsupported) error.of_kind(FindingKind::kBadHeader);
  throw error;
}

}  // namespace shard::hdf5
