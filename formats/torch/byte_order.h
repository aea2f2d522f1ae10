/// \file
/// The byte order of a torch.save zip.
#pragma once

#include "formats/parts/zip/zip.h"

namespace shard::torch_save {

/// Whether the elements of the zip's records are big-endian. Zips of torch before 2.1 have no record that says so and
/// are little-endian; that none is there is believed only where no other record is it under a damaged name: then the
/// local header of each record that is no storage must have the directory's name.
/// \throws Error kCorruption (kind bad_header)  it says neither "little" nor "big"; such names differ.
/// Cost: one small read, or one for each record that is no storage.
bool is_big_endian(const zip::ZipReader& zip);

}  // namespace shard::torch_save
