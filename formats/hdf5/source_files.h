/// \file
/// Finds the files of an HDF5 source. Inside formats/hdf5 only.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/hdf5/keras_index.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::hdf5 {

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
