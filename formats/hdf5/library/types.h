/// \file
/// libhdf5's datatypes, dataspaces and attributes, made from plain descriptions. Inside formats/hdf5 only.
///
/// Threads: the caller holds library_lock(). \throws LibraryError  from all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// \pre a type that is written: integers, floats, enums and compounds of those, fixed strings, opaque
TypeHandle make_type(const Type& type);
SpaceHandle make_space(const Space& space);

/// Adds an attribute to a group or dataset. \pre `content.data` has all elements, unless the space is null
void add_attribute(hid_t object, const std::string& name, const Content& content);

}  // namespace shard::hdf5
