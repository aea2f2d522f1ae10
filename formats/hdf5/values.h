/// \file
/// Objects as HDF5's attributes. Inside formats/hdf5 only.
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
/// Attributes of other files with several elements become lists of lists, strings that are not text and elements of
/// compounds become kBytes, complex numbers calls of `complex`.
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

/// What the bytes of a pickle begin with. (A tag of the datatype would hinder h5py, which reads untagged ones alone.)
inline constexpr std::string_view kPickleMark{"shardctl.pickle\0", 16};

/// What an attribute says. Ownership: in the arena, texts too.
/// Elements of a type that the parser does not read (references, variable length but strings) are kOpaque.
/// \param opaque_unknown  of a pickle of ours, see pickle::LoadOptions
/// \throws Error kCorruption  such a pickle that cannot be read.
Value* value_of(Arena& arena, const Content& content, bool opaque_unknown);

/// Whether the parser has read the elements: it leaves out those of references and sequences of variable length.
bool is_read(const Content& content);

/// Whether the elements are of a type that no value stands for, and are read as bytes.
bool becomes_bytes(const Content& content);
/// Whether it is a pickle of ours.
bool is_pickle(const Content& content);

/// An attribute to write, or a dataset of strings.
struct OutgoingContent {
  Type type{};
  Space space{};
  std::string bytes{};                 ///< Empty for strings.
  std::vector<std::string> strings{};  ///< For TypeClass::kString.

  Content view() const { return {type, space, std::as_bytes(std::span(bytes)), {strings.begin(), strings.end()}}; }
};
/// The attribute that an object becomes; reading it gives an equal value.
/// \throws Error kUnsupported  the value holds tensors, storages or opaque objects, or is larger than 4 GiB.
OutgoingContent content_of(const Value& value);
/// Whether a string attribute can hold the text: it is UTF-8 without NUL and lone surrogates.
bool is_plain_text(std::string_view text);
/// The attribute of a text, as content_of makes it of a string.
OutgoingContent text_content(std::string_view text);
/// A pickle behind its mark. \throws Error kUnsupported  more than 4 GiB
OutgoingContent pickle_content(std::string_view pickle);
OutgoingContent integer_content(std::int64_t number);
/// A list of integers.
OutgoingContent integers_content(std::span<const std::int64_t> numbers);
/// What those two wrote, or nothing for other contents.
std::optional<std::vector<std::int64_t>> integers_of(const Content& content);

}  // namespace shard::hdf5
