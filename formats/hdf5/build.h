/// \file
/// From an outline to a file's image. Inside formats/hdf5 only.
#pragma once

#include "formats/hdf5/library/image.h"
#include "formats/hdf5/outline.h"

namespace shard::hdf5 {

/// Makes the file of `outline`. \pre library_lock() is held; datasets with bytes lie apart, before `metadata_begin`
/// \throws LibraryError
/// Cost: linear in names and attributes, about 20 us each.
std::unique_ptr<Image> build_image(const Outline& outline, std::int64_t metadata_begin);

}  // namespace shard::hdf5
