/// \file
/// Which files an HDF5 source consists of. Inside formats/hdf5 only.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/hdf5/keras_index.h"

namespace shard::hdf5 {

struct SourceFiles {
  std::string folder;                 ///< What names lie in; empty when they are paths as given.
  std::vector<std::string> names;     ///< The files to read; those that virtual datasets name are not among them.
  std::vector<std::string> shown;     ///< For people, by file.
  std::string index;                  ///< The path of Keras' weights.json, or empty.
  KerasIndex keras{};                 ///< What that says.
  std::vector<std::string> data{};    ///< Of a folder: the names of all HDF5 files.
  std::vector<std::string> others{};  ///< Of a folder: other names.
};

/// Of a folder: what Keras' index names, else master.h5, else the only file.
/// \throws Error kNotFound (kind missing_file)  rank files without a master, or no file at all.
/// \throws Error kCorruption  several files that nothing holds together.
SourceFiles find_hdf5_files(const Source& source);

/// Adds to a catalog's warnings which files of the folder are not read, and warns of those of HDF5. \pre its files are
/// all that are read
void note_others(const SourceFiles& files, Catalog& catalog, Findings& findings);

}  // namespace shard::hdf5
