/// \file
/// Finds the folders of a save. Source: megatron/training/checkpointing.py of Megatron-Core 0.16.1,
/// get_checkpoint_name.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/megatron/arguments.h"

namespace shard::megatron {

inline constexpr std::string_view kModelFile = "model_optim_rng.pt";
/// The file of the distributed optimizer: beside each model file, or beside none.
inline constexpr std::string_view kOptimizerFile = "distrib_optim.pt";

/// The numbers of a model-parallel rank.
struct Coordinates {
  std::int64_t tensor = 0, pipeline = 0, expert = 0;

  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

struct SaveFolder {
  std::string path;  ///< The source.
  /// The iteration's folder in it: "iter_0000100/", or empty if it is the source itself.
  std::string prefix;
  std::vector<std::string> ranks;  ///< The mp_rank folders with the prefix, sorted.
};

/// True for a folder of mp_rank folders, and for one whose latest_checkpointed_iteration.txt names such a folder.
bool is_save_folder(const SourceStore& store, const std::string& path);

/// The iteration's folder: the source, or the folder that its latest_checkpointed_iteration.txt names.
/// \throws Error kNotFound     neither contains mp_rank folders.
/// \throws Error kUnsupported  single files of a save.
SaveFolder find_save_folder(const Source& source);

/// Calls `visit` with the ranks of a save, pipeline stages slowest, tensor-parallel ranks fastest; it may throw to
/// stop.
void for_each_rank(const Arguments& arguments, const std::function<void(const Coordinates& rank)>& visit);

/// "mp_rank_01_000": the pipeline's part exists if there are several stages, the experts' if there are several expert
/// ranks. So a name does not show which of them its second number counts.
std::string folder_of(const Coordinates& rank, const Arguments& arguments);

}  // namespace shard::megatron
