/// \file
/// Keras' index of weights that are spread over files: `NAME.weights.json` with
/// `{"metadata": {...}, "weight_map": {"/path/vars": "file" or ["file", ...]}}`. A path is that of a group whose
/// datasets lie in the file, or spread over the files. Source: keras/src/saving/saving_lib.py. Inside formats/hdf5
/// only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::hdf5 {

struct KerasIndex {
  struct Entry {
    std::string path;        ///< Of a group, without the leading '/'.
    std::uint32_t file = 0;  ///< Index into `files`.
  };
  std::vector<Entry> entries;
  std::vector<std::string> files;  ///< Sorted; each one safe path component.
};

/// \throws Error kCorruption (kind bad_header)  not such a document, or a file name with a path.
KerasIndex read_keras_index(const RandomReader& file);

}  // namespace shard::hdf5
