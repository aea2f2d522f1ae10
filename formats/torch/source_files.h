/// \file
/// Finds the files of a torch source: one torch.save file, or Hugging Face's folder of them.
#pragma once

#include "formats/format.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::torch_save {

/// If `findings.goes_on()` and the index of a folder is lost, the result is the parts in it.
/// \throws Error kNotFound     no files, or parts without their index.
/// \throws Error kCorruption   several indexes, none with the usual name.
/// \throws Error kUnsupported  several files without an index, which are probably one per rank.
hf_index::DataFiles find_saved_files(const Source& source, Findings& findings = throwing_findings());

}  // namespace shard::torch_save
