/// \file
/// Which files a safetensors source consists of: one file, several, a folder, or an index.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/format.h"

namespace shard::safetensors {

struct SourceFiles {
  std::string folder{};               ///< What `names` lie in; empty when they are paths as given.
  std::vector<std::string> names{};   ///< Data files to read. With an index: those that lie in the folder.
  std::vector<std::string> shown{};   ///< As the catalog calls them, one for each name.
  std::string index{};                ///< Path of the index, or empty.
  std::vector<std::string> others{};  ///< Other names in the folder, hidden ones aside.
};

/// \throws Error kNotFound    the folder holds none.
/// \throws Error kCorruption  several indices and none of the usual name.
SourceFiles find_tensor_files(const Source& source);

}  // namespace shard::safetensors
