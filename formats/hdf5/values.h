/// \file
/// Converts between objects and HDF5's attributes. Inside formats/hdf5 only.
///
/// | object | attribute |
/// |---|---|
/// | None | a null dataspace |
/// | bool | h5py's enum |
/// | int of 64 bits | an integer |
/// | float | an IEEE double, bit for bit |
/// | str in UTF-8 without NUL | a UTF-8 string of variable length, which h5py shows as str |
/// | everything else | opaque bytes: kPickleMark, and a pickle, which our inert machine reads |
///
/// Attributes of other files with several elements become lists of lists. Strings that are not text, and elements of
/// compounds, become kBytes. Complex numbers become calls of `complex`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::hdf5 {

/// The first bytes of a pickle. (A tag of the datatype would be an obstacle for h5py, which only reads untagged ones.)
inline constexpr std::string_view kPickleMark{"shardctl.pickle\0", 16};

/// The value of an attribute. Ownership: in the arena, including texts. Elements of a type that the parser does not
/// read (references, variable length other than strings) are kOpaque.
/// \param opaque_unknown  for a pickle that shardctl wrote, see pickle::LoadOptions
/// \throws Error kCorruption  such a pickle cannot be read.
Value* value_of(Arena& arena, const Content& content, bool opaque_unknown);

/// Whether the parser has read the elements. It skips those of references and sequences of variable length.
bool is_read(const Content& content);

/// Whether the elements have a type without a value, so that they are read as bytes.
bool becomes_bytes(const Content& content);
/// Whether it is a pickle that shardctl wrote.
bool is_pickle(const Content& content);

/// An attribute to write, or a dataset of strings.
struct OutgoingContent {
  Type type{};
  Space space{};
  std::string bytes{};                 ///< Empty for strings.
  std::vector<std::string> strings{};  ///< For TypeClass::kString.

  Content view() const { return {type, space, std::as_bytes(std::span(bytes)), {strings.begin(), strings.end()}}; }
};
/// The attribute for an object; reading it gives an equal value.
/// \throws Error kUnsupported  the value contains tensors, storages or opaque objects, or is larger than 4 GiB.
OutgoingContent content_of(const Value& value);
/// Whether a string attribute can contain the text: it is UTF-8 without NUL and lone surrogates.
bool is_plain_text(std::string_view text);
/// The attribute for a text, as content_of makes it from a string.
OutgoingContent text_content(std::string_view text);
/// A pickle after its mark. \throws Error kUnsupported  more than 4 GiB
OutgoingContent pickle_content(std::string_view pickle);
OutgoingContent integer_content(std::int64_t number);
/// The attribute for a list of integers.
OutgoingContent integers_content(std::span<const std::int64_t> numbers);
/// The integers in an attribute that content_of or integers_content made; nothing for other contents.
std::optional<std::vector<std::int64_t>> integers_of(const Content& content);

}  // namespace shard::hdf5
