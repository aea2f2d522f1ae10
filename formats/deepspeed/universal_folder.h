/// \file
/// Finds the files of a universal checkpoint. Source: deepspeed/checkpoint/ds_to_universal.py of 0.18.2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/tag_folder.h"
#include "formats/format.h"

namespace shard::deepspeed {

inline constexpr std::string_view kZeroFolder = "zero", kOptimizerFile = "optimizer_state.pt";
inline constexpr std::string_view kLatestUniversal = "latest_universal";
inline constexpr std::string_view kWeights = "fp32", kStep = "step";  ///< Files of a parameter, without ".pt".

struct UniversalFolder {
  struct Param {
    std::string name;
    std::vector<std::string> files;  ///< Without ".pt", sorted.
  };
  std::string path;
  std::vector<StateFile> models;  ///< Like TagFolder::models.
  bool are_models_of_ranks = false;
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
