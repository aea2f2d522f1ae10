/// \file
/// What the pickles of a DeepSpeed save say: model states and a rank's optimizer states, parsed and checked for kind.
///
/// Source: deepspeed/runtime/engine.py, runtime/zero/*.py, runtime/bf16_optimizer.py; older forms by their releases.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard::deepspeed {

using torch_save::TensorView;

/// A parameter by name and whole shape (of one model-parallel rank).
struct ParamShape {
  std::string_view name;
  Dims shape;
};
/// Parameters in the order in which buffers hold them: of a group (stages 1 and 2) or sub-group (stage 3).
using ParamGroup = std::vector<ParamShape>;

inline constexpr std::int64_t kSubGroupSize = 1'000'000'000;  ///< Where the configuration does not say.

struct ModelStates {
  std::uint32_t file = 0;  ///< Index in the catalog.
  StateFile ranks;
  Value* root = nullptr;
  HashMap<std::string_view, TensorView> module;  ///< The tensors of the module by name, in its order.
  Value* module_rest = nullptr;                  ///< A dict of what else the module holds, or null.
  HashSet<std::string_view> buffers;             ///< Their names.
  std::optional<std::vector<ParamGroup>> groups;
  HashMap<std::string_view, Dims> frozen_shapes;
  HashMap<std::string_view, TensorView> frozen_parts;
  HashMap<std::string_view, std::string_view> shared;  ///< Alias to the name that it repeats.
  std::int64_t data_ranks = 0;                         ///< 0 where it does not say.
  std::int64_t stage = -1;                             ///< By its configuration; -1 where that does not say.
  bool round_robin = false;                            ///< round_robin_gradients of its configuration.
  bool is_mics = false;                                ///< It says mics_shard_size: groups of ranks hold copies.
  std::int64_t sub_group_size = kSubGroupSize;         ///< Elements, by its configuration.
};

/// A state of the optimizer, such as exp_avg: a flat tensor for each group.
struct FlatState {
  std::string_view name;
  std::vector<std::optional<TensorView>> groups;
};

struct OptimizerStates {
  std::uint32_t file = 0;
  StateFile ranks;
  Value* root = nullptr;  ///< The file's tree, without masters.
  Value* rest = nullptr;  ///< A dict of what is not spread over ranks, numbers that were 0-d tensors among it.
  HashMap<std::int64_t, Value*> steps;  ///< By group: the part of `rest` that says how often it was updated.
  std::optional<std::int64_t> stage;    ///< None: BF16_Optimizer.
  std::int64_t data_ranks = 0;          ///< partition_count.
  std::vector<TensorView> masters;      ///< Of each group or sub-group.
  std::vector<FlatState> states;
  std::optional<std::vector<ParamGroup>> groups;            ///< Where the save is older than DeepSpeed 0.6.
  std::vector<std::vector<std::string_view>> mapped_names;  ///< Of param_slice_mappings: this rank's part of a group.
  std::vector<std::vector<std::int64_t>> members;           ///< Of param_groups: which of the groups each consists of.

  bool is_parted() const { return stage == 3; }
};

/// A file of a parameter in a universal checkpoint.
struct UniversalFile {
  std::string_view param;
  std::string_view name;  ///< "fp32", "exp_avg", ...
  std::uint32_t file = 0;
  std::optional<TensorView> view;  ///< One row where the save was of stage 3.
  Value* number = nullptr;         ///< In place of the view: a step.
};

struct UniversalStates {
  bool is_parted = false;            ///< The save was of stage 3.
  bool is_joined = false;            ///< Of several model-parallel ranks, whose states hold the shapes of parts.
  std::uint32_t file = 0;            ///< Of the optimizer's states.
  Value* rest = nullptr;             ///< A dict of those, less what was spread over ranks.
  std::vector<UniversalFile> files;  ///< By parameter, then name.
};

/// What the files of one save say, by data-parallel rank. \pre each rank is there once
struct Save {
  std::vector<ModelStates> models;          ///< One, or with stage 3 one of each rank.
  std::vector<OptimizerStates> optimizers;  ///< None: nothing is spread over ranks.

  /// In place of `optimizers`, of a universal checkpoint.
  std::optional<UniversalStates> universal{};

  /// Whether ranks hold parts of each parameter, as stage 3 has it.
  bool is_parted() const {
    return universal ? universal->is_parted : !optimizers.empty() && optimizers.front().is_parted();
  }
};

/// Opens the next file of `files`. \throws Error  naming the file: as SavedFiles::add; kCorruption (kind bad_pickle)
///   what is not as DeepSpeed writes it; kUnsupported  saves of kinds that are not read (README.md).
ModelStates read_model_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file);
OptimizerStates read_optimizer_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file);
/// The optimizer's states of a universal checkpoint; sets `file` and `rest`.
void read_universal_states(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name,
                           UniversalStates& states);
/// The file `name`.pt of a parameter. `path` is the file's. \throws Error  as above
UniversalFile read_universal_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& path,
                                  std::string_view param, std::string_view name);

}  // namespace shard::deepspeed
