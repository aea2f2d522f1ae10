/// \file
/// Which tensors of a training checkpoint are the model's, and what the model's own modules call them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// `name` without what wrappers of modules add to it: the parts `_orig_mod` (torch.compile), `_fsdp_wrapped_module`,
/// `_checkpoint_wrapped_module` and `_forward_module` (Lightning) wherever they stand, and `module`
/// (DistributedDataParallel) at the beginning or right after one of them. A last part is never taken away.
std::string without_wrappers(std::string_view name);

struct ModelTensor {
  std::uint32_t source;  ///< Index into the source's tensors.
  std::string name;
};

/// A container beside the model's that may hold another model, or another copy of this one.
struct BesideModel {
  std::string container;  ///< "state_dict_ema".
  std::int64_t tensors = 0;
};

struct ModelPart {
  std::string container{};               ///< The model's tensors are in it: "model", "state.model"; empty: in none.
  std::vector<ModelTensor> tensors{};    ///< By name, then source rank.
  std::vector<std::uint32_t> objects{};  ///< Those that lie with the model's tensors.
  std::int64_t other_tensors = 0, other_objects = 0;  ///< Of optimizers, schedulers and the like.
  std::int64_t renamed = 0;                           ///< Tensors whose name is another than the source's.
  std::vector<std::string> warnings{};                ///< What model_reader's catalog warns of: for the caller to fill.
  std::vector<BesideModel> beside{};                  ///< Part of `other_tensors`.
  /// Containers that each hold a model, where there are several and none is surely the one. `tensors` is empty then.
  std::vector<std::string> choices{};
  bool is_adapter = false;  ///< The tensors are an adapter (LoRA) without its base model, under PEFT's names.
  std::vector<std::string> adapters{};  ///< The adapters' own names, where the source has them: "default".
};

/// What is known of the model beside the checkpoint: it tells whether a module holds the model as its attribute
/// `model`.
struct ModelHints {
  std::function<bool(std::string_view name)> has{};  ///< Whether a reference has a tensor; null: there is none.
  std::string type{};                                ///< `model_type` of its config; may be empty.
  bool takes_several = false;  ///< The entries were chosen by name: several containers are one model.
};

/// The model's part of the entries that `takes_part` (source names). Where tensors are in a container in which trainers
/// keep a model (`model`, `state_dict`, `app.model`, ...), those are the model. Otherwise they are the tensors of the
/// one container whose names are those of a state_dict (`generator`, `ema`, ...), and otherwise all but those of other
/// states
/// (`optimizer`, `lr_scheduler`, ...). Names lose the container, what wrappers add, and, where some
/// begin with `model.model.` or `model.lm_head.` (or another head), one leading `model.` each. Where all names begin
/// with `model.` they lose it if the reference has more of them without; where there is none, if the next part is one
/// that `type` calls the model, such as `model.bert.`. Tensors of an adapter (LoRA) without its base model get PEFT's
/// names. \throws Error kInvalidArgument  two tensors would have one name; kUnsupported  tensors of an adapter beside
/// those of its base model, or flat parameters of FSDP, whose names nothing in the checkpoint says.
ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints = {});

}  // namespace shard
