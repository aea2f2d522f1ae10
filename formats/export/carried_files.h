/// \file
/// The files that export copies beside the weights, and the files of the source's folders that are not copied.
#pragma once

#include <string>
#include <vector>

#include "formats/export/model_folder.h"
#include "formats/export/taken_source.h"
#include "libshard/catalog/catalog.h"
#include "libshard/export/added_files.h"
#include "libshard/io/source_store.h"

namespace shard {

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

/// Files of the source's folders that are neither read nor copied.
struct LeftBehind {
  std::vector<std::string> weights;  ///< Weights in the source's folder that the warnings of its reader do not name.
  std::vector<std::vector<std::string>> others;  ///< Other names, one list for each folder with any.
};

/// Checks the folder of the weights, and `folder`, the one of the configuration, if the source is inside it.
LeftBehind left_behind(const SourceStore& store, const TakenSource& taken, const Catalog& source,
                       const CarriedFiles& carried, const std::string& folder);

}  // namespace shard
