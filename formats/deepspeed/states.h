/// \file
/// The content of a DeepSpeed save's pickles: model states and a rank's optimizer states, parsed and checked for
/// unsupported kinds.
///
/// Source: deepspeed/runtime/engine.py, runtime/zero/*.py, runtime/bf16_optimizer.py; older forms by their releases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/tag_folder.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard::deepspeed {

using torch_save::TensorView;

/// Begins the names of a pipeline's shared layers, before their key.
inline constexpr std::string_view kTiedModules = "tied_modules.";

/// A parameter of one model-parallel rank, by name and whole shape.
struct ParamShape {
  std::string_view name;
  Dims shape;
};
/// The parameters of a group (stages 1 and 2) or sub-group (stage 3), in the order of the buffers.
using ParamGroup = std::vector<ParamShape>;

/// DeepSpeed's default, if the configuration does not contain a value.
inline constexpr std::int64_t kSubGroupSize = 1'000'000'000;

struct ModelStates {
  std::uint32_t file = 0;  ///< Index in the catalog.
  StateFile ranks;
  Value* root = nullptr;
  HashMap<std::string_view, TensorView> module;  ///< The tensors of the module by name, in its order.
  Value* module_rest = nullptr;                  ///< A dict of the module's other values, or null.
  HashSet<std::string_view> buffers;             ///< The names of buffers.
  std::optional<std::vector<ParamGroup>> groups;
  HashMap<std::string_view, Dims> frozen_shapes;
  HashMap<std::string_view, TensorView> frozen_parts;
  HashMap<std::string_view, std::string_view> shared;  ///< From an alias to the name that it repeats.
  std::int64_t data_ranks = 0;                         ///< 0 if the file does not record it.
  std::int64_t stage = -1;                             ///< From its configuration; -1 if that does not contain it.
  bool round_robin = false;                            ///< round_robin_gradients of its configuration.
  bool aligned_params = false;                         ///< parameter_alignment of its configuration.
  /// Its configuration has mics_shard_size: groups of ranks have copies.
  bool is_mics = false;
  /// use_data_before_expert_parallelism of its configuration. If true, the ranks with the same experts are consecutive.
  bool data_before_experts = false;
  std::int64_t sub_group_size = kSubGroupSize;  ///< Elements, from its configuration.
};

/// A state of the optimizer, such as exp_avg: one flat tensor per group.
struct FlatState {
  std::string_view name;
  std::vector<std::optional<TensorView>> groups;
};

struct OptimizerStates {
  std::uint32_t file = 0;
  StateFile ranks;
  Value* root = nullptr;  ///< The file's tree, without the master weights.
  /// A dict of the values that are not distributed over ranks, including numbers that were 0-d tensors.
  Value* rest = nullptr;
  HashMap<std::int64_t, Value*> steps;  ///< By group: the part of `rest` that counts its updates.
  std::optional<std::int64_t> stage;    ///< Empty for BF16_Optimizer.
  std::int64_t data_ranks = 0;          ///< partition_count; if that differs between groups, the largest one.
  /// By group: the number of ranks that share it, if partition_count is a list. Groups of experts have fewer.
  std::vector<std::int64_t> sharing;
  std::vector<TensorView> masters;  ///< One per group or sub-group.
  std::vector<FlatState> states;
  std::optional<std::vector<ParamGroup>> groups;  ///< Set only for saves of DeepSpeed before 0.6.
  /// From param_alignment_paddings: by group, the unused elements behind each parameter. Empty before DeepSpeed 0.19.
  std::vector<std::vector<std::int64_t>> paddings;
  /// From param_slice_mappings: the names in this rank's part of each group.
  std::vector<std::vector<std::string_view>> mapped_names;
  /// From the optimizer's param_groups: the numbers of the groups that each one combines.
  std::vector<std::vector<std::int64_t>> members;

  bool is_parted() const { return stage == 3; }
};

/// A file of a parameter in a universal checkpoint.
struct UniversalFile {
  std::string_view param;
  std::string_view name;  ///< "fp32", "exp_avg", ...
  std::uint32_t file = 0;
  std::optional<TensorView> view;  ///< A single row if the save was of stage 3.
  Value* number = nullptr;         ///< A step, instead of the view.
};

struct UniversalStates {
  bool is_parted = false;  ///< The save was of stage 3.
  /// Joined from several model-parallel ranks, whose states contain the shapes of parts.
  bool is_joined = false;
  std::uint32_t file = 0;            ///< The file of the optimizer's states.
  Value* rest = nullptr;             ///< A dict of these states, without those that were distributed over ranks.
  std::vector<UniversalFile> files;  ///< By parameter, then name.
};

/// A rank's optimizer without ZeRO in a separate file, not in the file of the model's states.
struct RankOptimizer {
  std::string_view rank;  ///< "expp_rank_1"
  std::uint32_t file = 0;
  Value* states = nullptr;
};

/// The content of the files of one save, by data-parallel rank. \pre each rank occurs once
struct Save {
  std::vector<ModelStates> models;          ///< One, or with stage 3 one per rank.
  std::vector<OptimizerStates> optimizers;  ///< Empty if nothing is distributed over ranks.
  /// The files of experts and of a pipeline's layers. Only `file`, `module` and `module_rest` are set.
  std::vector<ModelStates> parts{};
  std::vector<RankOptimizer> rank_optimizers{};

  /// Instead of `optimizers`, for a universal checkpoint.
  std::optional<UniversalStates> universal{};

  /// Whether each rank has a part of each parameter, as in stage 3.
  bool is_parted() const {
    return universal ? universal->is_parted : !optimizers.empty() && optimizers.front().is_parted();
  }
};

/// Opens the next file of `files`. \throws Error  with the file's name: as SavedFiles::add; kCorruption (kind
/// bad_pickle)  a value does not have DeepSpeed's form; kUnsupported  a kind of save that is not supported (README.md).
ModelStates read_model_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file);
/// Reads the file of an expert or a layer, whose root is the module.
ModelStates read_part(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name);
/// The same module with `prefix` before its names.
ModelStates with_prefix(Arena& arena, const ModelStates& part, std::string_view prefix);
RankOptimizer read_rank_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file);
OptimizerStates read_optimizer_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file);
/// Reads the optimizer's states of a universal checkpoint; sets `file` and `rest`.
void read_universal_states(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name,
                           UniversalStates& states);
/// Reads the file `name`.pt of a parameter; `path` is its path. \throws Error  as read_model_states
UniversalFile read_universal_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& path,
                                  std::string_view param, std::string_view name);

// Values in these pickles.

/// The value under `key`. \throws Error kCorruption  it is None or missing.
Value& need_value(const Value& mapping, std::string_view key);

/// The groups of param_shapes: a list of them, or before DeepSpeed 0.5.4 a single one. Nothing if it is missing.
std::optional<std::vector<ParamGroup>> read_groups(Arena& arena, const Value& root);

/// Opens the file and calls `read` with its root. Adds the file's name to errors.
template <class Read>
void open_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name, const Read& read) {
  Value* const root = files.add(name);
  try {
    if (!is_mapping(*root)) throw pickle::malformed("states", "they are not a dict").found(type_name(*root));
    read(*root);
  } catch (Error& error) {
    throw error.in_file(catalog.files.back().path);
  }
}

}  // namespace shard::deepspeed
