/// \file
/// Describes libhdf5's datatypes, dataspaces, attributes and strings as plain data. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/entry_arena.h"

namespace shard::hdf5 {

/// \throws LibraryError  byte orders and sizes that described.h cannot express
Type describe_type(hid_t type);
/// Whether elements contain their whole value: no references and no parts of variable length.
bool is_plain(const Type& type);

Space describe_space(hid_t space);
std::int64_t elements_of(const Space& space);

/// A signed number of the interface. \throws LibraryError  it exceeds 63 bits
std::int64_t signed_of(hsize_t value);

// Contents that libhdf5 itself must decode.

/// All attributes of an object, by name, bytewise.
std::vector<Attribute> read_attributes(hid_t object, EntryArena& arena);
/// The elements of a dataset of strings.
std::vector<std::string_view> read_strings(hid_t dataset, const Space& space, EntryArena& arena);
/// The elements of a dataset, unconverted. \pre is_plain() of its type
std::span<const std::byte> read_elements(hid_t dataset, const Space& space, EntryArena& arena);

}  // namespace shard::hdf5
