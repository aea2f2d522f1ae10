/// \file
/// The byte order of a torch.save zip.
#pragma once

#include "formats/parts/zip/zip.h"

namespace shard::torch_save {

/// Whether the elements of the zip's records are big-endian. Zips of torch before 2.1 have no `byteorder` record and
/// are little-endian. A missing record counts as such only if no other record can be it under a damaged name: the local
/// header of each record that is not a storage must have the same name as the directory.
/// \throws Error kCorruption (kind bad_header)  the record is neither "little" nor "big"; such names differ.
/// Cost: one small read, or one for each record that is not a storage.
bool is_big_endian(const zip::ZipReader& zip);

}  // namespace shard::torch_save
