/// \file Chooses the dtypes of an exported model from its config. Pure.
#pragma once

#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/selection.h"

namespace shard {

/// The dtypes of the tensors in `model` if the config states `wanted`.
///
/// Floating-point tensors of 16 bits or more become `wanted`. Others, and those of quantized modules, are unchanged. A
/// config names one dtype, but some tensors must stay wider: routers, their correction biases, states of Mamba. The
/// weights show which. If most of a checkpoint has the dtype `wanted`, its wider tensors are intended. The reference
/// decides for the tensors that it has, the source for the others. A training checkpoint that is entirely float32 is no
/// such evidence. A name that transformers keeps in float32 for every model (`e_score_correction_bias`) needs no
/// evidence.
///
/// \param quantized  of `source`  \param reference  may be null
/// \returns one dtype for each tensor of `model`: never wider than the source's, unless it is `wanted`
std::vector<DType> auto_dtypes(std::span<const SelectedTensor> model, const Catalog& source,
                               const QuantizedPart& quantized, const Catalog* reference, DType wanted);

}  // namespace shard
