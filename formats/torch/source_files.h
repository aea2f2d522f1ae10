/// \file
/// Which files a torch source consists of: one torch.save file, or Hugging Face's folder of them.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"

namespace shard::torch_save {

struct SourceFiles {
  std::string folder;              ///< What `names` lie in; empty when they are paths as given.
  std::vector<std::string> names;  ///< Data files; with an index those that it names are read instead.
  std::string index;               ///< Path of the index, or empty.
};

/// If `findings` goes on, the parts of a folder whose index is lost are the files.
/// \throws Error kNotFound     nothing there, or parts without their index.
/// \throws Error kCorruption   several indices and none of the usual name.
/// \throws Error kUnsupported  several files without an index: one per rank.
SourceFiles find_saved_files(const Source& source, Findings& findings = throwing_findings());

}  // namespace shard::torch_save
