/// \file
/// Makes libhdf5's datatypes, dataspaces and attributes from plain descriptions. Inside formats/hdf5 only.
///
/// Threads: the caller must hold library_lock(). All functions may throw LibraryError.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// \pre is_writable(type)
TypeHandle make_type(const Type& type);
SpaceHandle make_space(const Space& space);

/// Adds an attribute to a group or dataset. \pre `content` has all elements (data or strings), unless its space is null
void add_attribute(hid_t object, const std::string& name, const Content& content);
/// Writes all elements of a dataset. \pre as add_attribute; `dataset` has the type and space of `content`
void write_elements(hid_t dataset, const Content& content);

}  // namespace shard::hdf5
