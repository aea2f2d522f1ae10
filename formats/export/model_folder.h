/// \file
/// The folder with a model's config and tokenizer, as Hugging Face's libraries know it.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// The name of the file with a model's numbers.
inline constexpr const char* kConfigName = "config.json";
/// The name of the file with an adapter's numbers.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";

/// The parts of a config.json that decide which tensors are exported.
struct ModelConfig {
  bool ties_embeddings = false;  ///< `tie_word_embeddings`, that of the text model if the model itself has none.
  std::string type;              ///< `model_type`; empty: none.
  std::string dtype;             ///< `torch_dtype` or `dtype`; empty: none.
  bool is_diffusers = false;     ///< It has `_class_name`: a model of diffusers.
};

/// A folder that files around the weights come from.
struct FilesFolder {
  std::string path;       ///< Empty: there is none.
  bool is_above = false;  ///< It is above what the user named, so that code in it need not be the source's.
};

/// The nearest folder to a source that has the file `name`: the source's own, `huggingface` in it, and the same for the
/// folders above it, as far as `named`, what the user named, or one folder above that.
/// \throws Error kCorruption  `huggingface` is a link that leads out of its folder
FilesFolder find_model_folder(const SourceStore& store, const std::string& source, const std::string& named,
                              const char* name = kConfigName);

/// \throws Error kNotFound  there is no config.json; kCorruption  it is not JSON.
ModelConfig read_model_config(const SourceStore& store, const std::string& folder);

/// The kind of weights that files belong to.
enum class FilesOf {
  kModel,    ///< A model: its configuration, tokenizer, chat templates, Python modules.
  kAdapter,  ///< An adapter: adapter_config.json, tokenizer and chat templates.
};

/// Files of a folder, sorted. Never a file of a model's own weights.
struct FolderFiles {
  std::vector<std::string> names{};       ///< Files that a folder needs to load.
  std::vector<std::string> code{};        ///< Python modules among them.
  std::vector<std::string> code_above{};  ///< Python modules that stay behind because the folder is above the source.
  std::vector<std::string> odd_names{};   ///< Files that stay behind because their names are not plain.
  std::vector<std::string> module_weights{};  ///< Weights of further modules that stay behind (sentence-transformers).
};

/// The files of `folder` that go beside the weights. A name is plain if it has letters, digits and ._+=- only, and
/// begins with none of the signs. In a folder of sentence-transformers (modules.json) the folders of its modules
/// (1_Pooling) count; their weights only if `takes_modules`.
FolderFiles model_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules);

/// Paths of all files of such a folder that may decide what is written: those in it and its chat templates. Folders in
/// it do not count, as the output may be one.
std::vector<std::string> reference_files(const SourceStore& store, const std::string& folder);

}  // namespace shard
