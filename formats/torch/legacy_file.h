/// \file
/// torch.save before 1.6, and with `_use_new_zipfile_serialization=False` since: pickles one behind the other, then the
/// storages.
///
///     pickle  0x1950a86a20f9469cfc6c        pickle  the object; storages are persistent ids
///     pickle  1001, the protocol            pickle  list of storage keys
///     pickle  dict about the machine        for each key: i64 count of elements, elements
///
/// All little-endian, whatever machine wrote it: torch swaps as it writes (torch/csrc/serialization.cpp). How large an
/// element is, only the persistent ids say. Source: torch/serialization.py, _legacy_save and _legacy_load.
#pragma once

#include <memory>

#include "formats/torch/saved_file.h"

namespace shard::torch_save {

/// True for a file that begins with the magic number, pickled with protocol 2 to 5.
bool is_legacy_file(const RandomReader& file);

/// \throws Error kCorruption  a damaged pickle; a key that no tensor uses, is missing or repeats; a storage of another
///   size than its tensors say; bytes behind the last storage. kUnsupported  another protocol than 1001.
std::unique_ptr<SavedFile> open_legacy_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                            const SavedFileOptions& options);

}  // namespace shard::torch_save
