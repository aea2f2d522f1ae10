/// \file
/// Finds the files of an HDF5 source, also by an index. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/parts/hf_index/indexed_folder.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

// Keras' index of weights that are distributed over files: `NAME.weights.json` with `{"metadata": {...}, "weight_map":
// {"/path/vars": "file" or ["file", ...]}}`. A path is that of a group whose datasets are in the file, or in all files
// of the list. Source: keras/src/saving/saving_lib.py.
//
// `NAME.h5.index.json`, which transformers 4 wrote beside TensorFlow's weights, has the same form. Its keys are names
// of weights: the model's own name, then the path of a dataset. Source: transformers/modeling_tf_utils.py of 4.57.

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

/// Virtual datasets in `names` may refer to further files.
struct Hdf5Files : hf_index::DataFiles {
  KerasIndex keras{};               ///< The content of Keras' index, if there is one.
  std::vector<std::string> data{};  ///< For a folder: the names of all HDF5 files.
};

/// The files of a source. In a folder: those in Keras' index, or else master.h5, or else the only file.
/// \throws Error kNotFound (kind missing_file)  rank files without a master, or no file at all.
/// \throws Error kCorruption  several files without an index or a master.
Hdf5Files find_hdf5_files(const Source& source);

/// Adds a warning about the files of the folder that are not read, and a finding for HDF5 files among them. \pre the
/// catalog's files are all files that are read
void note_others(const Hdf5Files& files, Catalog& catalog, Findings& findings);

}  // namespace shard::hdf5
