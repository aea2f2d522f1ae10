/// \file
/// All that the files of one save say, and the load checks: every rank of one save, once.
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
// megatron/training/checkpointing.py, megatron/core/optimizer/distrib_optimizer.py of core 0.16.1.

using torch_save::TensorView;

/// The part of the model in one chunk of a pipeline stage. Names are of the present form.
struct ChunkStates {
  HashMap<std::string_view, TensorView> tensors;  ///< In the model's order.
  HashMap<std::string_view, Value*> objects;      ///< What is not a tensor.
  std::int64_t hidden = 0;                        ///< Tensors that are extra states of Transformer Engine.
};

/// A rank's file of the model.
struct RankStates {
  std::uint32_t file = 0;  ///< Index in the catalog.
  Coordinates rank;
  Value* root = nullptr;
  std::vector<ChunkStates> chunks;
};

/// A flat tensor for each state: "param" (the masters), "exp_avg", "exp_avg_sq", all of one length.
using FlatStates = HashMap<std::string_view, TensorView>;

/// A rank's file of the distributed optimizer.
struct OptimizerStates {
  std::uint32_t file = 0;
  /// By optimizer (one, or with experts on ranks of their own a second one of these), then by chunk. One that another
  /// rank saves has no chunks. Empty where the file has another form.
  std::vector<std::vector<FlatStates>> optimizers;
};

/// Opens the file of `folder`, which becomes the catalog's last. Its chunks are not read yet.
/// \throws Error  naming the file: as SavedFiles::add; kCorruption (bad_pickle)  it is not a dict.
RankStates open_rank(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder);

/// The name of one of the `chunks` chunks in a rank's file: "model", or of several "model0", "model1", ...
std::string chunk_key(std::int64_t chunk, std::int64_t chunks);

/// Reads the `chunks` parts of the model that the file must hold.
/// \throws Error kCorruption   a part is missing, or holds a name twice. kUnsupported  a name from before Megatron-Core
///   for which nothing else stands.
void read_chunks(Catalog& catalog, RankStates& states, std::int64_t chunks);

/// \throws Error  as open_rank.
OptimizerStates open_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder);

struct Save {
  Arguments arguments;
  std::vector<RankStates> ranks;            ///< In the order of all_ranks.
  std::vector<OptimizerStates> optimizers;  ///< None, or one of each rank.

  std::size_t first_rank(std::int64_t stage) const;
  /// The ranks of a pipeline stage.
  std::span<const RankStates> ranks_of(std::int64_t stage) const;
};

/// Checks by their names that the folders of all ranks are there, and no others.
/// \throws Error kNotFound    a rank's folder is missing (kind missing_file), by name.
/// \throws Error kCorruption  a folder of no rank (kind extra_file); other ranks than expected (world_size_mismatch).
void check_folders(const SaveFolder& folder, const Arguments& arguments, std::optional<std::int64_t> ranks_expected);

/// Checks that the ranks are of one save, and that those of one stage hold equally large parts of the same tensors, of
/// each layer of the stage. \throws Error kCorruption  kinds mixed_save, index_mismatch, shape_mismatch, gap.
void check_save(const Catalog& catalog, const Save& save);

/// The layers of a chunk of a stage. \throws Error kCorruption  they are not spread evenly.
LayerRange layers_of(const Catalog& catalog, const Save& save, std::int64_t stage, std::int64_t chunk);

}  // namespace shard::megatron
