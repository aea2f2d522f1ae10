/// \file
/// Which files a universal checkpoint consists of. Source: deepspeed/checkpoint/ds_to_universal.py of 0.18.2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/tag_folder.h"
#include "formats/format.h"

namespace shard::deepspeed {

inline constexpr std::string_view kZeroFolder = "zero", kOptimizerFile = "optimizer_state.pt";
inline constexpr std::string_view kLatestUniversal = "latest_universal";
inline constexpr std::string_view kWeights = "fp32", kStep = "step";  ///< Files of a parameter, less ".pt".

struct UniversalFolder {
  struct Param {
    std::string name;
    std::vector<std::string> files;  ///< Less ".pt", sorted.
  };
  std::string path;
  std::vector<StateFile> models;  ///< As those of TagFolder.
  bool are_models_of_ranks = false;
  std::vector<Param> params;  ///< By name.
};

/// True for a folder that holds zero/optimizer_state.pt, or whose file `latest_universal` names one that does.
bool is_universal_folder(const SourceStore& store, const std::string& path);
/// True for the folder itself, whatever `latest_universal` names.
bool holds_universal(const SourceStore& store, const std::string& path);

/// \throws Error kNotFound  it holds no model's states; a folder under zero/ without fp32.pt; kUnsupported  more than
///   one path.
UniversalFolder find_universal_folder(const Source& source);

}  // namespace shard::deepspeed
