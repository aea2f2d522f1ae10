/// \file
/// Which files a torch source consists of: one torch.save file, or Hugging Face's folder of them.
#pragma once

#include "formats/format.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::torch_save {

/// If `findings.goes_on()`, the parts of a folder whose index is lost are the files.
/// \throws Error kNotFound     nothing there, or parts without their index.
/// \throws Error kCorruption   several indices and none of the usual name.
/// \throws Error kUnsupported  several files without an index: one per rank.
hf_index::DataFiles find_saved_files(const Source& source, Findings& findings = throwing_findings());

}  // namespace shard::torch_save
