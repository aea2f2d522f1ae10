/// \file
/// Which files an HDF5 source consists of. Inside formats/hdf5 only.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/hdf5/keras_index.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::hdf5 {

/// Of `names`, virtual datasets may name further files.
struct Hdf5Files : hf_index::DataFiles {
  KerasIndex keras{};               ///< The content of Keras' index, if there is one.
  std::vector<std::string> data{};  ///< Of a folder: the names of all HDF5 files.
};

/// Of a folder: what Keras' index names, else master.h5, else the only file.
/// \throws Error kNotFound (kind missing_file)  rank files without a master, or no file at all.
/// \throws Error kCorruption  several files that nothing holds together.
Hdf5Files find_hdf5_files(const Source& source);

/// Adds to a catalog's warnings which files of the folder are not read, and warns of those of HDF5. \pre its files are
/// all that are read
void note_others(const Hdf5Files& files, Catalog& catalog, Findings& findings);

}  // namespace shard::hdf5
