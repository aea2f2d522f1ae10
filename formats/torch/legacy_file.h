/// \file
/// Files of torch.save before 1.6, and of later versions with `_use_new_zipfile_serialization=False`: pickles in a row,
/// then the storages.
///
///     pickle  0x1950a86a20f9469cfc6c        pickle  the object; storages are persistent ids
///     pickle  1001, the protocol            pickle  list of storage keys
///     pickle  dict about the machine        for each key: i64 count of elements, elements
///
/// All numbers and elements are little-endian on every machine, because torch swaps them when it writes
/// (torch/csrc/serialization.cpp). Only the persistent ids define the size of an element. Source:
/// torch/serialization.py, _legacy_save and _legacy_load.
#pragma once

#include <memory>

#include "formats/torch/saved_file.h"

namespace shard::torch_save {

/// True for a file that starts with the magic number, pickled with protocol 2 to 5.
bool is_legacy_file(const RandomReader& file);

/// \throws Error kCorruption  a damaged pickle; a key that no tensor uses, is missing or repeats; a storage whose size
///   does not match its tensors; bytes after the last storage. kUnsupported  a protocol other than 1001.
std::unique_ptr<SavedFile> open_legacy_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                            const SavedFileOptions& options);

}  // namespace shard::torch_save
