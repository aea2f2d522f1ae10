/// \file
/// Files that export copies beside the weights, and those of the source's folders that stay behind.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/model_folder.h"
#include "apps/shardctl/source/taken_source.h"
#include "libshard/catalog/catalog.h"
#include "libshard/export/added_files.h"

namespace shard::app {

struct CarriedFiles {
  std::vector<AddedFile> files;
  std::vector<std::string> paths;     ///< Where they are read, in the order of `files`.
  std::vector<std::string> code;      ///< Those of them that are Python modules: names in the output.
  std::vector<std::string> warnings;  ///< Files that stay behind although a model may need them.
};

/// The files of `folder` that belong to a model or an adapter; none without a folder. Opens none of them, but with
/// --local-input, which reads them at once. `takes_modules`: see model_files.
CarriedFiles carried_files(const Session& session, const FilesFolder& folder, FilesOf what, bool takes_modules);

/// A warning for each folder of the source with files that are neither read nor copied: the folder of its weights, and
/// the one of its configuration, if the source is in that.
std::vector<std::string> left_behind(const Session& session, const TakenSource& taken, const Catalog& source,
                                     const CarriedFiles& carried, const std::string& folder);

}  // namespace shard::app
