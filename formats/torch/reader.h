/// \file
/// Recognises and opens torch.save files. README.md in this folder documents bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::torch_save {

/// True for one file of torch.save, an index of such files, and a folder with Hugging Face's names for them.
bool detect(const Source& source);

/// Opens one torch.save file, a folder with `pytorch_model.bin` or with an index, or an index.
/// \throws Error kCorruption, kNotFound, kUnsupported  see open_saved_file and as_tensor. Also
///   kCorruption if a storage's record is missing or has a different size, if the index contradicts the files (kind
///   index_mismatch), and if two files contain one tensor (kind duplicate_name).
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::torch_save
