/// \file
/// The folder with a model's config and tokenizer, in the form of Hugging Face's libraries, and copies of its files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/checkpoint/writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/source_store.h"

namespace shard {

/// The name of the file with a model's parameters such as sizes.
inline constexpr const char* kConfigName = "config.json";
/// The same in folders of open_clip, which may have no config.json.
inline constexpr const char* kOpenClipConfigName = "open_clip_config.json";
/// The name of the file with an adapter's parameters.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";

/// The parts of a config.json that decide which tensors are exported.
struct ModelConfig {
  bool ties_embeddings = false;  ///< `tie_word_embeddings`, or that of the text model if the model itself has none.
  bool states_ties = false;      ///< Whether it has one of these.
  std::string type;              ///< `model_type`; empty: none.
  std::string dtype;             ///< `torch_dtype` or `dtype`; empty: none.
  bool is_diffusers = false;     ///< It has `_class_name`: a model of diffusers.
};

/// The folder from which files beside the weights are copied.
struct FilesFolder {
  std::string path;       ///< Empty if there is none.
  bool is_above = false;  ///< It is above the path that the user named, so its code may not belong to the source.
};

/// The nearest folder to a source that has the file `name`. The search starts with the source's own folder and
/// `huggingface` in it, and continues with the same for each parent folder, up to `named`, the path that the user gave,
/// or one folder above that. A config.json of OLMo-core does not count.
/// \throws Error kCorruption  `huggingface` is a link that leads out of its folder
FilesFolder find_model_folder(const SourceStore& store, const std::string& source, const std::string& named,
                              const char* name = kConfigName);

/// The path of the reference's config.json. \throws Error kNotFound  it has none. The error suggests the folder that
/// was probably meant: that of a file, or a snapshot in a cache of the Hugging Face Hub.
std::string config_of_reference(const SourceStore& store, const std::string& reference);

/// \throws Error kNotFound  see config_of_reference; kCorruption  config.json is not JSON.
ModelConfig read_model_config(const SourceStore& store, const std::string& folder);

/// The kind of weights to which files belong.
enum class FilesOf {
  kModel,    ///< A model: its configuration, tokenizer, chat templates, Python modules.
  kAdapter,  ///< An adapter: adapter_config.json, tokenizer and chat templates.
};

/// Files of a folder, sorted. Never a file of a model's own weights.
struct FolderFiles {
  std::vector<std::string> names{};  ///< Files that are needed to load a folder.
  std::vector<std::string> code{};   ///< Python modules among them.
  /// Python modules that are not copied because the folder is above the source.
  std::vector<std::string> code_above{};
  std::vector<std::string> odd_names{};  ///< Files that are not copied because their names are not plain.
  /// Weights of further modules that are not copied (sentence-transformers).
  std::vector<std::string> module_weights{};
};

/// The files of `folder` that accompany the weights. A name is plain if it has only letters, digits and ._+=-, and does
/// not begin with one of these signs. In a folder of sentence-transformers (modules.json) the folders of its modules
/// (1_Pooling) are included; their weights only if `takes_modules`.
FolderFiles model_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules);

/// Paths of all files of such a folder that may affect the output: those directly in it, and its chat templates. Its
/// other folders do not count, because the output may be one.
std::vector<std::string> reference_files(const SourceStore& store, const std::string& folder);

/// A file that is written in addition to those of a format.
struct AddedFile {
  std::string path;        ///< In the output, parts separated by '/'.
  std::int64_t bytes = 0;  ///< Size of its content.
  /// Opens the content. Called when the file is written, so that any number of files needs one descriptor at a time.
  std::function<std::shared_ptr<const RandomReader>()> open{};
};

/// The file `name` of `folder`, under the same name. Asks for its size, and opens nothing. Ownership: the store must
/// outlive it.
AddedFile added_file(const SourceStore& store, const std::string& folder, const std::string& name);

/// The files that an export copies beside the weights.
struct CarriedFiles {
  std::vector<AddedFile> files;
  std::vector<std::string> paths;  ///< Paths of the files in the folder that belong to the model.
  FolderFiles listed;  ///< Their names in the output, and files that are not copied although a model may need them.
};

/// The files of `folder` that belong to a model or an adapter; empty if there is no folder. Opens none of them. With
/// `holds_files` it reads them at once, for a store that can only be read during one step. `takes_modules`: see
/// model_files. \throws Error kUnsupported  there are more than 1000
/// Ownership: the store must outlive the files.
CarriedFiles carried_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules,
                           bool holds_files);

/// A writer that does the same as `inner`, and then writes `files`, which are committed with the rest. Each is cloned
/// if `reflink_disk` (may be null) supports it. \pre inner writes a folder, and none of its files has the name of an
/// added one
/// Its begin_file \throws Error kCorruption  the size of a content has changed
/// Ownership: `reflink_disk` must outlive the writer.
std::unique_ptr<Writer> with_added_files(std::unique_ptr<Writer> inner, std::vector<AddedFile> files,
                                         LocalDisk* reflink_disk);

/// A text as the content of a file. `name` is for messages.
std::shared_ptr<const RandomReader> held_in_memory(std::string_view text, const std::string& name);

}  // namespace shard
