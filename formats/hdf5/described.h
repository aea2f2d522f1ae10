/// \file
/// The content of an HDF5 file as plain data: the form in which the parser's process returns it and in which the writer
/// requests it. Independent of libhdf5. Inside formats/hdf5 only.
///
/// Views point into a buffer of the function that made the description. The comment of each function states their
/// lifetime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard::hdf5 {

enum class TypeClass : std::uint8_t {
  kInteger,
  kFloat,
  kString,
  kOpaque,
  kBitfield,
  kEnum,
  kCompound,
  kArray,
  kVariableLength,
  kReference,
  kTime,
  kComplex,  ///< The complex type of HDF5 2.0, which libhdf5 1.10 cannot open.
};

/// The positions of the bits of a floating-point type, counted from the least significant.
struct FloatFields {
  std::uint32_t precision = 0, offset = 0;
  std::uint32_t sign_at = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
  std::uint64_t bias = 0;
  bool implied_one = true;  ///< Normalisation: the mantissa's leading 1 is not stored.

  friend bool operator==(const FloatFields&, const FloatFields&) = default;
};

/// How a string of fixed length is padded.
enum class StringPadding : std::uint8_t { kNullTerminated, kNull, kSpace };

/// A datatype. `inner` contains a compound's members, the base of an array or enum, or the type of a variable length.
struct Type {
  TypeClass kind = TypeClass::kInteger;
  std::uint32_t bytes = 0;   ///< The size of one element, padding included.
  bool big_endian = false;   ///< kInteger, kFloat, kBitfield.
  bool is_signed = false;    ///< kInteger.
  bool is_variable = false;  ///< kString: of variable length.
  bool is_utf8 = false;      ///< kString: true for UTF-8, false for ASCII.
  StringPadding padding{};   ///< kString.
  /// kInteger, kBitfield: the number of significant bits, and the position of the first.
  std::uint32_t precision = 0, offset = 0;
  FloatFields fields{};              ///< kFloat.
  std::string tag;                   ///< kOpaque: its tag.
  std::vector<std::int64_t> dims{};  ///< kArray.
  struct Member;
  std::vector<Member> inner;  // Without {}: clang would need Member here.
};
/// A compound's field, or a name of an enum with its value. An enum starts with its base type, under the empty name.
struct Type::Member {
  std::string name;
  std::uint32_t at = 0;    ///< Bytes from the compound's start.
  std::int64_t value = 0;  ///< The value of an enum's name.
  Type type{};             ///< The type of a field, or of an enum's base.
};

enum class SpaceKind : std::uint8_t { kNull, kScalar, kSimple };
struct Space {
  SpaceKind kind = SpaceKind::kScalar;
  std::vector<std::int64_t> shape{};
};

/// An attribute, or the content of a dataset of strings. Elements of `type` are row-major, exactly as in the file.
/// Strings are listed one by one, without their padding.
struct Content {
  Type type{};
  Space space{};
  std::span<const std::byte> data{};        ///< Empty for strings, and if the parser does not read the type.
  std::vector<std::string_view> strings{};  ///< For TypeClass::kString.
};
struct Attribute {
  std::string_view name;
  Content content{};
};

/// The filters that can be undone; any other is refused by name.
enum class FilterKind : std::uint8_t { kDeflate, kShuffle, kFletcher32, kLzf };
struct Filter {
  FilterKind kind;
  std::uint32_t parameter = 0;  ///< kShuffle: the number of bytes of an element.
};

/// The number of boxes of `box` along a dimension of `size`; the last box may be partial. \pre box > 0
inline std::int64_t boxes_along(std::int64_t size, std::int64_t box) { return size / box + (size % box != 0); }

/// A chunk that was written.
struct ChunkPlace {
  std::int64_t number = 0;    ///< The index in the grid of chunks, row-major.
  std::int64_t offset = 0;    ///< Offset in the file.
  std::uint32_t bytes = 0;    ///< The stored size.
  std::uint32_t skipped = 0;  ///< Bit i is set if filter i was not applied.
};

/// A part of a virtual dataset: a box, and the box of the same sizes in a dataset of a file. Their numbers of
/// dimensions may differ by dimensions of size 1.
struct VirtualBox {
  std::vector<std::int64_t> offsets, sizes;
  std::vector<std::int64_t> source_offsets, source_sizes;
};
struct VirtualMapping {
  /// The name in the virtual dataset: relative to its folder, absolute, or "." for the file itself.
  std::string_view file;
  std::string_view dataset;  ///< The path in that file.
  std::vector<VirtualBox> boxes{};
};

enum class StorageKind : std::uint8_t { kCompact, kContiguous, kChunked, kVirtual };

enum class EntryKind : std::uint8_t { kGroup, kDataset, kUnread };

/// One group or dataset under one of its names. Also an object that is valid but not read: a dataset of an unsupported
/// kind, or a link into a different file. Entries are in depth-first order, with the names of a group in bytewise order
/// and a group before its content. The first entry is the root group.
struct Entry {
  EntryKind kind = EntryKind::kGroup;
  std::vector<std::string_view> links{};  ///< The names of the links from the root.
  std::uint64_t object = 0;               ///< Equal for two names of one object.
  std::vector<Attribute> attributes{};
  std::int64_t members = 0;  ///< kGroup: the number of its names.
  std::string_view why{};    ///< kUnread: the unsupported part. Never empty.

  // From here on, fields of a dataset:
  Type type{};
  Space space{};
  StorageKind storage = StorageKind::kContiguous;
  std::vector<std::string_view> strings{};  ///< For a dataset of strings: the elements; the fields below are not set.
  std::span<const std::byte> compact{};     ///< kCompact: the elements.
  std::int64_t offset = -1;                 ///< kContiguous: offset in the file; -1 if no space was ever allocated.
  std::int64_t stored_bytes = 0;            ///< kContiguous.
  std::vector<std::int64_t> chunk_shape{};  ///< kChunked.
  std::vector<Filter> filters{};            ///< kChunked: in the order in which they were applied.
  std::vector<ChunkPlace> chunks{};         ///< kChunked: sorted by number.
  std::vector<std::byte> fill{};            ///< The value of one element that was never written; empty: zeros.
  std::vector<VirtualMapping> mappings{};   ///< kVirtual.
};

/// Facts of the whole file.
struct FileFacts {
  std::uint32_t superblock_version = 0;
  std::int64_t user_block_bytes = 0;
  /// Objects that are not entries: dangling links, named datatypes; for warnings.
  std::vector<std::string> skipped{};
};

}  // namespace shard::hdf5
