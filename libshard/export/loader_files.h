/// \file Finds the weights that a library's loader opens in a folder, by the names of the files in it. Pure.
#pragma once

#include <string>
#include <vector>

namespace shard {

/// The library whose `from_pretrained` opens a folder.
enum class Loader {
  kTransformers,  ///< model.safetensors, otherwise pytorch_model.bin.
  kDiffusers,     ///< diffusion_pytorch_model.safetensors or .bin: one model of a pipeline.
  kPeft,          ///< adapter_model.safetensors or .bin: an adapter.
};

/// One set of weights: one file, parts with their index, or only parts.
struct LoaderFiles {
  std::string stem;                  ///< "model", "pytorch_model", "diffusion_pytorch_model", "adapter_model".
  std::string suffix;                ///< ".safetensors" or ".bin".
  std::string variant;               ///< "fp16" in model.fp16.safetensors; empty: none.
  std::string index;                 ///< The name of the index, which lists the weights; empty: none.
  std::vector<std::string> weights;  ///< Without an index, the one file or the parts, sorted. With an index, the parts.
};

/// The sets of weights among `names` that `loader` knows, the one that it opens first. It opens a set of a variant only
/// on request, so the first one has a variant only if all have. Cost: n log n in names.
std::vector<LoaderFiles> loader_files(const std::vector<std::string>& names, Loader loader);

}  // namespace shard
