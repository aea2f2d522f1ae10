/// \file
/// The content of all files of one save, and the load checks: every rank of one save exists once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/megatron/arguments.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard::megatron {

// The folders of a save. Source: megatron/training/checkpointing.py of Megatron-Core 0.16.1, get_checkpoint_name.

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

/// Calls `visit` with the ranks of a save, stages slowest, tensor-parallel ranks fastest; it may throw to stop.
void for_each_rank(const Arguments& arguments, const std::function<void(const Coordinates& rank)>& visit);

/// "mp_rank_01_000": the pipeline's part exists if there are several stages, the experts' if there are several expert
/// ranks. So a name does not show which of them its second number counts.
std::string folder_of(const Coordinates& rank, const Arguments& arguments);

// Pickles of one model-parallel rank: its part of the model and its optimizer's buffers. Source:
// megatron/training/checkpointing.py, megatron/core/optimizer/distrib_optimizer.py of Megatron-Core 0.16.1.

using torch_save::TensorView;

/// The part of the model in one chunk of a pipeline stage. Names have the current form.
struct ChunkStates {
  HashMap<std::string_view, TensorView> tensors;  ///< In the model's order.
  HashMap<std::string_view, Value*> objects;      ///< Values that are not tensors.
  /// The number of tensors that are extra states of Transformer Engine.
  std::int64_t hidden = 0;
};

/// A rank's file of the model.
struct RankStates {
  std::uint32_t file = 0;  ///< Index in the catalog.
  Coordinates rank;
  Value* root = nullptr;
  std::vector<ChunkStates> chunks;
};

/// One flat tensor per state: "param" (the master weights), "exp_avg", "exp_avg_sq", all of one length.
using FlatStates = HashMap<std::string_view, TensorView>;

/// A rank's file of the distributed optimizer.
struct OptimizerStates {
  std::uint32_t file = 0;
  /// By optimizer, then by chunk. There is one optimizer, or a second one for experts on separate ranks. An optimizer
  /// that a different rank saves has no chunks. Empty if the file has an unknown form.
  std::vector<std::vector<FlatStates>> optimizers;
};

/// Opens the file of `folder`, which becomes the catalog's last. Its chunks are not read yet.
/// \throws Error  with the file's name: as SavedFiles::add; kCorruption (bad_pickle)  it is not a dict.
RankStates open_rank(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder);

/// The name of one of the `chunks` chunks in a rank's file: "model", or "model0", "model1", ... if there are several.
std::string chunk_key(std::int64_t chunk, std::int64_t chunks);

/// Reads the `chunks` parts of the model, which the file must contain.
/// \throws Error kCorruption   a part is missing, or contains a name twice. kUnsupported  a name from before
///   Megatron-Core that has no current form.
void read_chunks(Catalog& catalog, RankStates& states, std::int64_t chunks);

/// \throws Error  as open_rank; kCorruption (rank_mismatch)  it is a file of the model.
OptimizerStates open_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder);

struct Save {
  Arguments arguments;
  std::vector<RankStates> ranks;            ///< In the order of all_ranks.
  std::vector<OptimizerStates> optimizers;  ///< Empty, or one per rank.

  std::size_t first_rank(std::int64_t stage) const;
  /// The ranks of a pipeline stage.
  std::span<const RankStates> ranks_of(std::int64_t stage) const;
};

/// Checks by their names that the folders of all ranks exist, and no others.
/// \throws Error kNotFound    a rank's folder is missing (kind missing_file); with its name.
/// \throws Error kCorruption  a folder belongs to no rank (kind extra_file); the ranks are not the expected ones
///   (world_size_mismatch).
void check_folders(const SaveFolder& folder, const Arguments& arguments, std::optional<std::int64_t> ranks_expected);

/// Checks that the ranks are of one save, and that those of one stage have equally large parts of the same tensors, for
/// each layer of the stage. \throws Error kCorruption  kinds mixed_save, index_mismatch, shape_mismatch, gap.
void check_save(const Catalog& catalog, const Save& save);

/// The layers of a chunk of a stage. \throws Error kCorruption  the layers cannot be distributed evenly.
LayerRange layers_of(const Catalog& catalog, const Save& save, std::int64_t stage, std::int64_t chunk);

}  // namespace shard::megatron
