/// \file
/// The dtypes of a model that is exported as its config states. Pure.
#pragma once

#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection.h"

namespace shard {

/// The dtypes of the tensors of `model` when the config states `wanted`.
///
/// Floating-point tensors of 16 bits or more become `wanted`; others, and those of quantized modules, stay as they are.
/// A config names one dtype, but some tensors must stay wider: routers, their correction biases, states of Mamba. The
/// weights show which: if most of a checkpoint has the dtype `wanted`, its wider tensors are so on purpose. The
/// reference decides on the tensors that it has, the source on the others. A training checkpoint in which all is
/// float32 is no such sign. A name that transformers keeps in float32 for every model (`e_score_correction_bias`) needs
/// no sign.
///
/// \param quantized  of `source`  \param reference  may be null
/// \returns one dtype for each of `model`, never wider than the source's, except that it is `wanted`
std::vector<DType> auto_dtypes(std::span<const SelectedTensor> model, const Catalog& source,
                               const QuantizedPart& quantized, const Catalog* reference, DType wanted);

}  // namespace shard
