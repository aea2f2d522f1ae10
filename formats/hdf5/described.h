/// \file
/// What an HDF5 file holds, as plain data: the form in which the parser's process hands it over and in which the writer
/// asks for it. Nothing here refers to libhdf5. Inside formats/hdf5 only.
///
/// Views point into a buffer of whoever made the description; the comment of each function says how long they live.
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
  kComplex,  ///< HDF5 2.0's own; libhdf5 1.10 cannot open it.
};

/// Where the bits of a floating-point type lie, counted from the least significant.
struct FloatFields {
  std::uint32_t precision = 0, offset = 0;
  std::uint32_t sign_at = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
  std::uint64_t bias = 0;
  bool implied_one = true;  ///< Normalisation: the mantissa's leading 1 is not stored.

  friend bool operator==(const FloatFields&, const FloatFields&) = default;
};

/// How a string of fixed length is padded.
enum class StringPadding : std::uint8_t { kNullTerminated, kNull, kSpace };

/// A datatype. `inner` has a compound's members, an array's or enum's base, or what a variable length is of.
struct Type {
  TypeClass kind = TypeClass::kInteger;
  std::uint32_t bytes = 0;                  ///< Of one element, padding included.
  bool big_endian = false;                  ///< kInteger, kFloat, kBitfield.
  bool is_signed = false;                   ///< kInteger.
  bool is_variable = false;                 ///< kString: of variable length.
  bool is_utf8 = false;                     ///< kString: else ASCII.
  StringPadding padding{};                  ///< kString.
  std::uint32_t precision = 0, offset = 0;  ///< kInteger, kBitfield: significant bits, and where they begin.
  FloatFields fields{};                     ///< kFloat.
  std::string tag;                          ///< kOpaque: its tag.
  std::vector<std::int64_t> dims{};         ///< kArray.
  struct Member;
  std::vector<Member> inner;  // Without {}: clang would need Member here.
};
/// Of a compound: a field. Of an enum: a name and its value, and first the base type under the empty name.
struct Type::Member {
  std::string name;
  std::uint32_t at = 0;    ///< Bytes from the compound's begin.
  std::int64_t value = 0;  ///< An enum member's.
  Type type{};             ///< Of fields, and of the enum's base.
};

enum class SpaceKind : std::uint8_t { kNull, kScalar, kSimple };
struct Space {
  SpaceKind kind = SpaceKind::kScalar;
  std::vector<std::int64_t> shape{};
};

/// An attribute, or the content of a dataset of strings. Elements are row-major, as they lie in the file: of `type`,
/// nothing converted. Strings are cut at their padding, and come one by one.
struct Content {
  Type type{};
  Space space{};
  std::span<const std::byte> data{};        ///< Empty for strings, and where the parser does not read the type.
  std::vector<std::string_view> strings{};  ///< For TypeClass::kString.
};
struct Attribute {
  std::string_view name;
  Content content{};
};

/// The filters that can be undone; others are refused by name.
enum class FilterKind : std::uint8_t { kDeflate, kShuffle, kFletcher32, kLzf };
struct Filter {
  FilterKind kind;
  std::uint32_t parameter = 0;  ///< kShuffle: bytes of an element.
};

/// How many boxes of `box` a dimension of `size` takes, the last perhaps in part. \pre box > 0
inline std::int64_t boxes_along(std::int64_t size, std::int64_t box) { return size / box + (size % box != 0); }

/// A chunk that was written.
struct ChunkPlace {
  std::int64_t number = 0;    ///< Row-major in the grid of chunks.
  std::int64_t offset = 0;    ///< In the file.
  std::uint32_t bytes = 0;    ///< Stored.
  std::uint32_t skipped = 0;  ///< Bit i: filter i was not applied.
};

/// Part of a virtual dataset: a box, and the box of the same sizes of a dataset in a file. Ranks may differ by
/// dimensions of size 1.
struct VirtualBox {
  std::vector<std::int64_t> offsets, sizes;
  std::vector<std::int64_t> source_offsets, source_sizes;
};
struct VirtualMapping {
  std::string_view file;     ///< As the file says: relative to its folder, absolute, or "." for itself.
  std::string_view dataset;  ///< The path in it.
  std::vector<VirtualBox> boxes{};
};

enum class StorageKind : std::uint8_t { kCompact, kContiguous, kChunked, kVirtual };

enum class EntryKind : std::uint8_t { kGroup, kDataset, kUnread };

/// One group or dataset under one of its names, or what is neither read nor malformed: a dataset of a kind that is not
/// supported, a link into another file. Entries come depth first, names of a group bytewise, a group before
/// what is in it; the first is the root group.
struct Entry {
  EntryKind kind = EntryKind::kGroup;
  std::vector<std::string_view> links{};  ///< The names that lead to it from the root.
  std::uint64_t object = 0;               ///< Equal for two names of one object.
  std::vector<Attribute> attributes{};
  std::int64_t members = 0;  ///< kGroup: how many names it holds.
  std::string_view why{};    ///< kUnread: what is not supported. Never empty.

  // Of a dataset:
  Type type{};
  Space space{};
  StorageKind storage = StorageKind::kContiguous;
  std::vector<std::string_view> strings{};  ///< Of a dataset of strings: the elements; the fields below are unset.
  std::span<const std::byte> compact{};     ///< kCompact: the elements.
  std::int64_t offset = -1;                 ///< kContiguous: in the file; -1 where no space was ever taken.
  std::int64_t stored_bytes = 0;            ///< kContiguous.
  std::vector<std::int64_t> chunk_shape{};  ///< kChunked.
  std::vector<Filter> filters{};            ///< kChunked: as they were applied when written.
  std::vector<ChunkPlace> chunks{};         ///< kChunked: by number.
  std::vector<std::byte> fill{};            ///< One element, for what was never written; empty: zeros.
  std::vector<VirtualMapping> mappings{};   ///< kVirtual.
};

/// Facts of the whole file.
struct FileFacts {
  std::uint32_t superblock_version = 0;
  std::int64_t user_block_bytes = 0;
  std::vector<std::string>
      skipped{};  ///< What is not an entry: links that lead nowhere, named datatypes; for warnings.
};

}  // namespace shard::hdf5
