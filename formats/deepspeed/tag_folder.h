/// \file
/// Which files a DeepSpeed save consists of, and what their names say. Source: deepspeed/runtime/engine.py of 0.18.2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace shard::deepspeed {

/// One rank's file. Names count data-parallel ranks ("pp_rank" in older names too) and model-parallel ones.
struct StateFile {
  std::string name;
  std::int64_t data_rank = 0;   ///< 0 in files of all data-parallel ranks.
  std::int64_t model_rank = 0;  ///< Tensor or pipeline parallel.
};

/// The name that the file of data-parallel rank `rank` has beside `other`. \pre its name counts data-parallel ranks
std::string name_beside(const StateFile& other, std::int64_t rank);

struct TagFolder {
  std::string path;
  std::vector<StateFile> models;          ///< mp_rank_M_model_states.pt, by model rank.
  std::vector<StateFile> sharded_models;  ///< Stage 3: zero_pp_rank_D_mp_rank_M_model_states.pt, by model, data rank.
  std::vector<StateFile> optimizers;      ///< [bf16_]zero_pp_rank_D_mp_rank_M_optim_states.pt, in the same order.
};

/// Its files of one model-parallel rank.
TagFolder of_model_rank(const TagFolder& folder, std::int64_t model_rank);

/// True for a folder that holds such files, or whose file `latest` names one that does. Reads names alone.
bool is_tag_folder(const SourceStore& store, const std::string& path);
/// True for the name of a file of model or optimizer states.
bool is_state_file(std::string_view name);

/// The files of that kind among `names`, which lie in `path`.
TagFolder sort_state_files(const std::string& path, std::span<const std::string> names);
/// The folder in `path` that its text file `file` names; empty where there is none.
std::string named_folder(const SourceStore& store, const std::string& path, std::string_view file);

/// The files of the folder, or of the one that its `latest` names.
/// \throws Error kNotFound     neither holds such files.
/// \throws Error kUnsupported  what no reader here can join: layers of a pipeline, experts, tensors offloaded to disk,
///   files in pieces; more than one file of a folder as the source.
TagFolder find_tag_folder(const Source& source);

}  // namespace shard::deepspeed
