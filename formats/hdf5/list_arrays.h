/// \file
/// Lists of scalars of one type as attributes with arrays, which other programs read as such. Inside formats/hdf5 only.
///
/// | list or tuple of | array of |
/// |---|---|
/// | ints of 64 bits | int64 |
/// | floats | float64 |
/// | bools | h5py's enum |
/// | str in UTF-8 without NUL | UTF-8 strings of variable length |
///
/// The elements of an array are read as the objects of a list, so the file says the same as a group of attributes
/// would.
#pragma once

#include <string>
#include <vector>

#include "formats/hdf5/kept_content.h"
#include "libshard/core/arena.h"

namespace shard::hdf5 {

/// Takes the lists of `target` that are written as arrays, and marks their objects in `is_written`. Those of lists are
/// marked in `needs_no_tree` too; a tuple is told from a list by the tree only.
/// Objects that are marked in `is_written` already are left alone. `arena` holds the paths of the result.
std::vector<KeptContent> take_lists(const Catalog& target, Arena& arena, std::vector<bool>& is_written,
                                    std::vector<bool>& needs_no_tree);

}  // namespace shard::hdf5
