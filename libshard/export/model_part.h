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

/// True for a name that PEFT gives a tensor of an adapter: some part begins with `lora_`.
bool is_lora(std::string_view name);

struct ModelTensor {
  std::uint32_t source;  ///< Index into the source's tensors.
  std::string name;
};

struct ModelPart {
  std::string container;               ///< What the model's tensors lie in: "model", "state.model"; empty: in nothing.
  std::vector<ModelTensor> tensors{};  ///< By name, then source rank.
  std::vector<std::uint32_t> objects{};               ///< Those that lie with the model's tensors.
  std::int64_t other_tensors = 0, other_objects = 0;  ///< Of optimizers, schedulers and the like.
  std::int64_t renamed = 0;                           ///< Tensors whose name is another than the source's.
  std::vector<std::string> warnings{};                ///< What model_reader's catalog warns of: for the caller to fill.
};

/// What is known of the model beside the checkpoint: it tells whether a module holds the model as its attribute
/// `model`.
struct ModelHints {
  std::function<bool(std::string_view name)> has{};  ///< Whether a reference has a tensor; null: there is none.
  std::string type{};                                ///< `model_type` of its config; may be empty.
};

/// The model's part of the entries that `takes_part` (source names). Where tensors lie in a container that trainers
/// keep a model in (`model`, `state_dict`, `app.model`, ...), they are the model; else all are, but those in containers
/// of other states (`optimizer`, `lr_scheduler`, ...). Names lose the container, what wrappers add, and, where some
/// begin with `model.model.` or `model.lm_head.` (or another head), one leading `model.` each. Where all names begin
/// with `model.` they lose it if the reference has more of them without; where there is none, if the next part is one
/// that `type` calls the model, such as `model.bert.`. \throws Error kInvalidArgument  two tensors would have one name;
/// kUnsupported  tensors of an adapter (LoRA), or flat
///   parameters of FSDP, whose names nothing in the checkpoint says.
ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints = {});

}  // namespace shard
