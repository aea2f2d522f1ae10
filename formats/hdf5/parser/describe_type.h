/// \file
/// Describes datatypes and dataspaces of libhdf5 as plain data. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// \throws Refusal  byte orders and sizes that described.h cannot express; LibraryError
Type describe_type(hid_t type);
/// Whether elements contain their whole value: no references and no parts of variable length.
bool is_plain(const Type& type);

Space describe_space(hid_t space);
std::int64_t elements_of(const Space& space);

/// A signed number of the interface. \throws Refusal  it exceeds 63 bits
std::int64_t signed_of(hsize_t value);

}  // namespace shard::hdf5
