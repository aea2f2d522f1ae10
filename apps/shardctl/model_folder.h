/// \file
/// The folder that a model's config and tokenizer lie in, as Hugging Face's libraries know it.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::app {

/// The name of the file in which a model's numbers stand.
inline constexpr const char* kConfigName = "config.json";

/// What of a config.json decides which tensors are exported.
struct ModelConfig {
  bool ties_embeddings = false;  ///< `tie_word_embeddings`, of the text model where the model itself has none.
  std::string type;              ///< `model_type`; empty where there is none.
  std::string dtype;             ///< `torch_dtype` or `dtype`; empty where there is none.
};

/// The folder with a config.json that lies nearest to a source: the source's own, `huggingface` in it, and the same for
/// the folders above it, as far as `named`, what the user named, or one folder above that. Empty where there is none.
std::string find_model_folder(const SourceStore& store, const std::string& source, const std::string& named);

/// \throws Error kNotFound  there is no config.json; kCorruption  it is not JSON.
ModelConfig read_model_config(const SourceStore& store, const std::string& folder);

/// Names of the files that a folder which loads needs besides weights: configs, tokenizer, chat templates, Python
/// modules. Sorted; never a file of weights.
std::vector<std::string> model_files(const SourceStore& store, const std::string& folder);

/// Paths of all files of such a folder that may decide what is written: those in it and its chat templates. Folders in
/// it do not count, as the output may be one.
std::vector<std::string> reference_files(const SourceStore& store, const std::string& folder);

}  // namespace shard::app
