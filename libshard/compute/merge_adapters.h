/// \file
/// Merging adapters (LoRA): from a base model and adapters under PEFT's names to a source with merged weights.
///
/// W + scale * B A, the sum in float32 in the order of the adapters, rounded once to W's dtype. With DoRA, each row is
/// then scaled to its magnitude. Rules: PEFT 0.21.2, tuners/lora/layer.py and tuners/lora/dora.py.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/adapter_config.h"
#include "libshard/compute/computed_reader.h"

namespace shard {

struct Adapter {
  std::unique_ptr<Reader> reader;  ///< Its tensors have the names of adapter_model.safetensors.
  AdapterConfig config;
  double weight = 1;                    ///< Multiplies the scale of every module.
  std::string label;                    ///< The adapter's name in messages.
  std::vector<std::string> warnings{};  ///< Passed on with those of the merge.
};

/// Counts of one adapter. All pairs that are found are used.
struct MergedAdapter {
  std::int64_t pairs = 0;     ///< Pairs of A and B.
  std::int64_t replaced = 0;  ///< Tensors of the base model that the adapter has whole.
};

/// The base model with weights merged while they are read. A weight that is stored under several names stays one.
///
/// The names of modules are those of the base model, possibly after a prefix is added, removed or replaced. The prefix
/// that fits most modules of the adapter is tried first, then the others, of which only one may fit. A pair belongs to
/// `MODULE.weight`, or to a parameter of experts `MODULE.NAME` whose shape fits ([experts, out, in] or
/// [experts, in, out]).
/// \param counts  receives the counts of each adapter
/// \param computed  the readers that compute weights of `base`, which are not rounded before the sum
/// \throws Error kInvalidArgument  a module that the base model does not have
/// \throws Error kCorruption  half a pair; shapes that do not fit
/// \throws Error kUnsupported  a tensor of an unknown form; a factor that is neither a matrix nor one of a convolution
///   without groups; a base weight that is not float32, float16 or bfloat16; DoRA with other adapters, weights or
///   transposed weights; experts of which it is uncertain how they are transposed
/// Cost: n log n in the tensors.
std::unique_ptr<Reader> merge_adapters(std::unique_ptr<Reader> base, std::vector<Adapter> adapters,
                                       std::vector<MergedAdapter>& counts, ComputedReaders computed = {});

/// True if `base` has the modules of all adapters, and some of these are parameters of experts, `MODULE.NAME`.
/// \throws Error kCorruption, kUnsupported  as merge_adapters, about one adapter
bool change_experts(const Catalog& base, const std::vector<Adapter>& adapters);

}  // namespace shard
