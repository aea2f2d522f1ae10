/// \file
/// Recognises and opens torch.save files. Bytes, limits and refusals: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::torch_save {

/// One file of torch.save, an index of such, or a folder with names that Hugging Face gives them.
bool detect(const Source& source);

/// Opens one torch.save file, a folder with `pytorch_model.bin` or with an index, or an index.
/// \throws Error kCorruption, kNotFound, kUnsupported  see find_saved_files, open_saved_file and as_tensor; besides
///   kCorruption where a storage's record is absent or has another size, where the index and the files disagree (kind
///   index_mismatch), and where two files hold one tensor (kind duplicate_name).
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::torch_save
