/// \file Finds the model's tensors in a training checkpoint, and their names in the model's own modules. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/error.h"

namespace shard {

/// `name` without the parts that wrappers of modules add: `_orig_mod` (torch.compile), `_fsdp_wrapped_module`,
/// `_checkpoint_wrapped_module` and `_forward_module` (Lightning) anywhere, and `module` (DistributedDataParallel) at
/// the beginning or right after one of them. The last part is never removed.
std::string without_wrappers(std::string_view name);

/// Whether an entry of a training checkpoint belongs to an optimizer, a scheduler or another state of the trainer, by
/// the key of its container or by its name.
bool is_trainer_state(std::string_view name, const Path& path);

/// The refusal of a tensor if it is_flat_parameter (catalog/targets/target.h). \param doing  "export"
std::optional<Error> refused_flat_parameter(std::string_view name, std::string_view doing);

struct ModelTensor {
  std::uint32_t source;  ///< Index into the source's tensors.
  std::string name;
};

/// A container next to the model's that may have a different model, or a different copy of this one.
struct BesideModel {
  std::string container;  ///< "state_dict_ema".
  std::int64_t tensors = 0;
};

struct ModelPart {
  std::string container{};               ///< The container of the model's tensors: "model", ...; empty: none.
  std::vector<ModelTensor> tensors{};    ///< By name, then source rank.
  std::vector<std::uint32_t> objects{};  ///< Objects that are stored with the model's tensors.
  std::int64_t other_tensors = 0, other_objects = 0;  ///< Entries of optimizers, schedulers and the like.
  std::int64_t renamed = 0;                           ///< The number of tensors whose name differs from the source's.
  std::vector<std::string> warnings{};                ///< Warnings for model_reader's catalog, which the caller adds.
  std::vector<BesideModel> beside{};                  ///< Part of `other_tensors`.
  /// Containers that each have a model, if there are several and none is certain. `tensors` is then empty.
  std::vector<std::string> choices{};
  bool is_adapter = false;  ///< The tensors are an adapter (LoRA) without its base model, under PEFT's names.
  std::vector<std::string> adapters{};  ///< The adapters' own names, if the source has them: "default".
};

/// Facts from outside of the checkpoint that show whether a module holds the model as its attribute `model`.
struct ModelHints {
  std::function<bool(std::string_view name)> has{};  ///< Whether a reference has a tensor; null: there is none.
  std::string type{};                                ///< `model_type` of its config; may be empty.
  bool takes_several = false;     ///< The entries were chosen by name: several containers are one model.
  bool is_adapters_file = false;  ///< The source is PEFT's own file of an adapter of any type.
};

/// Finds the model's part of the entries that `takes_part` accepts (by source name). If tensors are in a container in
/// which trainers store a model (`model`, `state_dict`, `app.model`, ...), those are the model. Otherwise, they are the
/// tensors of the one container whose names are those of a state_dict (`generator`, `ema`, ...), or else all except
/// those of other states (`optimizer`, `lr_scheduler`, ...).
///
/// Names lose the container and the parts that wrappers add. As long as some begin with `model.model.` or
/// `model.lm_head.` (or a different head), each loses one leading `model.`, unless most are names of the reference, or
/// the type is that of RF-DETR, of which a class has such names beside others. If all names begin with `model.`, they
/// lose it if more of them match the reference without it. Without a reference, they lose it if the next part is a name
/// of the model according to `type`, such as `model.bert.`. Tensors of an adapter (LoRA) without its base model get
/// PEFT's names. Tensors of PEFT's own file keep their names.
/// \throws Error kInvalidArgument  two tensors would have one name; kUnsupported  tensors of an adapter together with
///   those of its base model, or flat parameters of FSDP, whose names the checkpoint does not contain.
ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints = {});

/// Presents a training checkpoint as a checkpoint of only its model: the tensors of `part` under their new names, each
/// with a separate path, and their objects, whose names are unchanged. \pre `part` belongs to inner's catalog. Cost: a
/// copy of the catalog.
std::unique_ptr<Reader> model_reader(std::unique_ptr<Reader> inner, const ModelPart& part);

}  // namespace shard
