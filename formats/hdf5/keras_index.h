/// \file
/// Keras' index of weights that are distributed over files: `NAME.weights.json` with `{"metadata": {...}, "weight_map":
/// {"/path/vars": "file" or ["file", ...]}}`. A path is that of a group whose datasets are in the file, or in all files
/// of the list. Source: keras/src/saving/saving_lib.py.
///
/// `NAME.h5.index.json`, which transformers 4 wrote beside TensorFlow's weights, has the same form. Its keys are names
/// of weights: the model's own name, then the path of a dataset. Source: transformers/modeling_tf_utils.py of 4.57.
/// Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::hdf5 {

struct KerasIndex {
  struct Entry {
    std::string path;        ///< The path of a group, without the leading '/'.
    std::uint32_t file = 0;  ///< Index into `files`.
  };
  std::vector<Entry> entries;
  std::vector<std::string> files;  ///< Sorted; each one a safe path.
};

/// The path of an entry's dataset in an index of TensorFlow's weights.
std::string_view without_model_name(std::string_view path);

/// \throws Error kCorruption (kind bad_header)  a different document, or a file name with a path.
KerasIndex read_keras_index(const RandomReader& file);

}  // namespace shard::hdf5
