/// \file
/// Finds the files of a DeepSpeed save or of a universal checkpoint, and reads their names. Source:
/// deepspeed/runtime/engine.py, deepspeed/checkpoint/ds_to_universal.py of 0.18.2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace shard::deepspeed {

/// One rank's file. Its name contains the data-parallel rank ("pp_rank" in older names) and the model-parallel one.
struct StateFile {
  std::string name;
  std::int64_t data_rank = 0;   ///< 0 for a file of all data-parallel ranks.
  std::int64_t model_rank = 0;  ///< Tensor or pipeline parallel.
};

/// The file of one layer of a pipeline, or of one expert. It contains only tensors by name.
struct PartFile {
  std::string name;
  std::int64_t model_rank = 0;  ///< For a layer: the tensor-parallel rank in its stage.
  std::int64_t layer = 0;       ///< For an expert: its MoE layer in the files of one model-parallel rank, or -1.
  std::int64_t expert = 0;
};

/// The name of data-parallel rank `rank`'s file beside `other`. \pre the name of `other` contains a data-parallel rank
std::string name_beside(const StateFile& other, std::int64_t rank);

struct TagFolder {
  std::string path;
  std::vector<StateFile> models;          ///< mp_rank_M_model_states.pt, by model rank.
  std::vector<StateFile> sharded_models;  ///< Stage 3: zero_pp_rank_D_mp_rank_M_model_states.pt, by model, data rank.
  std::vector<StateFile> optimizers;      ///< [bf16_]zero_pp_rank_D_mp_rank_M_optim_states.pt, in the same order.
  std::vector<PartFile> layers;           ///< layer_L[-model_M]-model_states.pt of a pipeline, by model rank, layer.
  std::vector<PartFile> experts;  ///< [layer_L_]expert_E_mp_rank_M_model_states.pt, by model rank, layer, expert.
  /// expp_rank_R_mp_rank_M_optim_states.pt: optimizers without ZeRO of a model with experts.
  std::vector<StateFile> expert_optimizers;
};

/// The files of one model-parallel rank, without layers.
TagFolder of_model_rank(const TagFolder& folder, std::int64_t model_rank);

/// True for a folder with such files, and for one whose file `latest` names such a folder. Reads only names.
bool is_tag_folder(const SourceStore& store, const std::string& path);
/// The folder in `path` that its text file `file` names; empty if there is none.
std::string named_folder(const SourceStore& store, const std::string& path, std::string_view file);

/// The files of the folder, or of the one that its `latest` names.
/// \throws Error kNotFound     neither contains such files.
/// \throws Error kUnsupported  files that no reader can join: layers of a pipeline with further axes, tensors offloaded
///   to disk, files in pieces; more than one file of a folder as the source.
TagFolder find_tag_folder(const Source& source);

// Universal checkpoints.

inline constexpr std::string_view kZeroFolder = "zero", kOptimizerFile = "optimizer_state.pt";
inline constexpr std::string_view kLatestUniversal = "latest_universal";
inline constexpr std::string_view kWeightFile = "fp32", kStepFile = "step";  ///< Files of a parameter, without ".pt".

struct UniversalFolder {
  struct Param {
    std::string name;
    std::vector<std::string> files;  ///< Without ".pt", sorted.
  };
  std::string path;
  std::vector<StateFile> models;  ///< Like TagFolder::models.
  bool are_models_of_ranks = false;
  bool has_layers = false;    ///< Files of a pipeline's layers, which ds_to_universal copies.
  std::vector<Param> params;  ///< By name.
};

/// True for a folder with zero/optimizer_state.pt, and for one whose file `latest_universal` names such a folder.
bool is_universal_folder(const SourceStore& store, const std::string& path);
/// True only for the folder itself; ignores `latest_universal`.
bool holds_universal(const SourceStore& store, const std::string& path);

/// \throws Error kNotFound  the folder has no model states; a folder under zero/ has no fp32.pt; kUnsupported  more
///   than one path.
UniversalFolder find_universal_folder(const Source& source);

}  // namespace shard::deepspeed
