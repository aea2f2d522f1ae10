/// \file
/// Recognises HDF5 sources without the plug-in, so that no other format opens them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"
#include "libshard/core/suffixes.h"

namespace shard {

/// The suffix of the index that Keras writes beside weights in several files.
inline constexpr std::string_view kKerasIndexSuffix = ".weights.json";

/// The suffix of Keras' archives: zips with the model's configuration and its weights as an HDF5 file.
inline constexpr std::string_view kKerasArchiveSuffix = ".keras";
/// The record of such a zip with the HDF5 file.
inline constexpr std::string_view kKerasWeightsName = "model.weights.h5";

/// The bytes of that record in a zip, stored without compression. Nothing for other files, and for zips that are
/// damaged or compress it.
struct KerasWeights {
  std::int64_t offset = 0, bytes = 0;
};
std::optional<KerasWeights> keras_weights_in(const std::shared_ptr<const RandomReader>& file);
/// True for the path of an archive of Keras whose weights can be read inside it.
bool is_keras_archive(const SourceStore& store, const std::string& path);

/// True for a visible name of an HDF5 file.
bool is_hdf5_name(std::string_view name);
/// The suffix of the index that transformers 4 wrote beside TensorFlow's weights in several files.
inline constexpr std::string_view kTensorFlowIndexSuffix = ".h5.index.json";

/// True for the path of a file of Keras' or TensorFlow's index.
bool is_keras_index(const SourceStore& store, const std::string& path);
/// True for a file with HDF5's signature, which may follow a user block; for several such files; for a folder that
/// contains one with such a name; and for Keras' index.
bool is_hdf5_source(const Source& source);

}  // namespace shard
