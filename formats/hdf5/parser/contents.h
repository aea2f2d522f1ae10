/// \file
/// Reads attributes and strings, which libhdf5 itself must decode. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/describe_type.h"
#include "formats/hdf5/parser/entry_arena.h"

namespace shard::hdf5 {

/// All attributes of an object, by name, bytewise.
std::vector<Attribute> read_attributes(hid_t object, EntryArena& arena);
/// The elements of a dataset of strings.
std::vector<std::string_view> read_strings(hid_t dataset, const Space& space, EntryArena& arena);
/// The elements of a dataset, unconverted. \pre is_plain() of its type
std::span<const std::byte> read_elements(hid_t dataset, const Space& space, EntryArena& arena);

}  // namespace shard::hdf5
