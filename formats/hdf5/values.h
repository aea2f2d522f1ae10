/// \file
/// Objects as HDF5's attributes. Inside formats/hdf5 only.
///
/// | object | attribute |
/// |---|---|
/// | None | a null dataspace |
/// | bool | h5py's enum |
/// | int of 64 bits | an integer |
/// | float | an IEEE double, bit for bit |
/// | str without NUL, not empty | a UTF-8 string of fixed length |
/// | everything else | opaque bytes with the tag kPickleTag: a pickle, read by our inert machine |
///
/// Of other files, attributes with several elements become lists of lists.
#pragma once

#include <string>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::hdf5 {

inline constexpr std::string_view kPickleTag = "shardctl.pickle";

/// What an attribute says. Ownership: in the arena, texts too.
/// \throws Error kUnsupported  a datatype that no object stands for (references, compounds, variable length but
/// strings);
///   under `opaque_unknown` such a one becomes a kOpaque value instead.
/// \throws Error kCorruption  a pickle of ours that cannot be read.
Value* value_of(Arena& arena, const Content& content, bool opaque_unknown);

/// An attribute to write, with the bytes that `content` points into.
struct OutgoingContent {
  Content content{};
  std::string bytes{};
};
/// The attribute that an object becomes; reading it gives an equal value. \pre not a kTensor
OutgoingContent content_of(const Value& value);
/// An attribute of text.
OutgoingContent text_content(std::string_view text);

}  // namespace shard::hdf5
