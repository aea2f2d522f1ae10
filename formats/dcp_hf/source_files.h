/// \file
/// Finds the files of a dcp-hf source and checks their names against one another.
#pragma once

#include <string>
#include <vector>

#include "formats/dcp_hf/names.h"
#include "formats/format.h"

namespace shard::dcp_hf {

struct ShardFile {
  std::string path;   ///< The path to open; inside `folder` if that is set.
  std::string shown;  ///< The file's path in the catalog.
  ShardName name;
};

struct ShardFiles {
  std::string folder;               ///< Empty if the files were named one by one.
  std::vector<ShardFile> files;     ///< By rank, then by number.
  std::vector<std::string> others;  ///< Other names in the folder, except hidden ones.
};

/// Finds the files and checks their names: they have one form and one count, each file occurs once, and each number has
/// a file of some rank.
/// \throws Error kNotFound    (or reports) the folder has no shards; there are shards beside the named ones; a number
///   has no file.
/// \throws Error kCorruption  (or reports) a name has a form that torch does not write, or contradicts the others.
ShardFiles find_shard_files(const Source& source, Findings& findings);

}  // namespace shard::dcp_hf
