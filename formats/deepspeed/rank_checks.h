/// \file
/// The load checks of a save's files: every rank of one save, once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/findings.h"

namespace shard::deepspeed {

/// Checks by their names that `files` are those of ranks 0, 1, ..., each once.
/// \throws Error kNotFound     a rank before the last is missing (kind missing_file), naming its file.
/// \throws Error kCorruption   two files of a rank (kind extra_file).
/// \pre they are of one model-parallel rank
void check_names(const TagFolder& folder, const std::vector<StateFile>& files);

/// Checks that no file was saved under the name of another one of the save.
/// \throws Error kCorruption (kind rank_mismatch)
void check_saved_names(const Catalog& catalog, const torch_save::SavedFiles& files);

/// Checks that the saves of model-parallel ranks are one save: all of them, of one step and number of data-parallel
/// ranks. \throws Error kNotFound, kCorruption
void check_model_ranks(const Catalog& catalog, const TagFolder& folder, const std::vector<Save>& saves);

/// Checks what the files say of one another: number of ranks, stage, steps. \pre names were checked
/// \returns the number of data-parallel ranks; 0 where nothing says it.
/// \throws Error kNotFound    files of ranks are missing at the end, or all of the optimizer's.
/// \throws Error kCorruption  kinds world_size_mismatch, mixed_save.
std::int64_t check_save(const Catalog& catalog, const TagFolder& folder, const Save& save, bool from_module,
                        std::optional<std::int64_t> ranks_expected);

}  // namespace shard::deepspeed
