/// \file
/// Whether a source is of HDF5: known without the plug-in, so that nothing else opens it.
#pragma once

#include <array>
#include <string_view>

#include "formats/format.h"

namespace shard {

inline constexpr std::array<std::string_view, 2> kHdf5Suffixes{".h5", ".hdf5"};
/// The suffix of the index that Keras writes beside weights in several files.
inline constexpr std::string_view kKerasIndexSuffix = ".weights.json";

/// True for a visible name of an HDF5 file.
bool is_hdf5_name(std::string_view name);
/// True for the path of a file of Keras' index.
bool is_keras_index(const SourceStore& store, const std::string& path);
/// True for a file with HDF5's signature, which may stand behind a block of the user's own, for several of them, for a
/// folder that holds one under such a name, and for Keras' index.
bool is_hdf5_source(const Source& source);

}  // namespace shard
