/// \file
/// The content of all files of one save, and the load checks: every rank of one save exists once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/megatron/arguments.h"
#include "formats/megatron/save_folder.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard::megatron {

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

/// \throws Error  as open_rank.
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
