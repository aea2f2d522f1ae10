/// \file
/// Which files a dcp-hf source consists of, and what their names say together.
#pragma once

#include <string>
#include <vector>

#include "formats/dcp_hf/names.h"
#include "formats/format.h"

namespace shard::dcp_hf {

struct ShardFile {
  std::string path;   ///< As the file system opens it: below `folder` where that is set.
  std::string shown;  ///< As the catalog calls it.
  ShardName name;
};

struct ShardFiles {
  std::string folder;               ///< Empty when the files were named one by one.
  std::vector<ShardFile> files;     ///< By rank, then number.
  std::vector<std::string> others;  ///< Other names in the folder, hidden ones aside.
};

/// Finds the files and checks their names: one form, one count, each file once, no number that no rank has.
/// \throws Error kNotFound    (or reports) the folder holds none, shards beside the named ones, a number without a
/// file. \throws Error kCorruption  (or reports) a name that is not torch's, one that contradicts the others.
ShardFiles find_shard_files(const Source& source, Findings& findings);

}  // namespace shard::dcp_hf
