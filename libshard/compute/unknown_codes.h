/// \file Errors for quantized modules that are incomplete, or that no form describes. Inside libshard/compute only.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/quantized.h"
#include "libshard/compute/stated_schemes.h"
#include "libshard/core/error.h"

namespace shard {

/// Whether tensors of that role mean nothing without codes.
bool is_number_of_codes(QuantizedRole role);

/// Plain integers that look like a weight without its scales, in a module that the configuration leaves plain.
bool is_stated_plain(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                     const StatedSchemes& stated);

/// StatedSchemes::unknown_form if no module has both a weight and scales, because their tensors are then probably those
/// of that form. Otherwise empty. Cost: linear in the modules.
std::string unknown_form_of_all(const QuantizedPart& part, const StatedSchemes& stated);

/// kUnsupported: weights of that form cannot be computed. \param name  of the module or the tensor
Error no_formula(QuantizedForm form, std::string_view name, std::string_view tensor, std::string_view why);

/// For a module with a weight or with scales, but not both: kCorruption, or kUnsupported if its form is unknown.
/// \param unknown_form  see unknown_form_of_all
Error incomplete_module(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                        const std::string& unknown_form);

/// Looks for codes among the plain tensors of a quantized checkpoint: those of sparse weights, and if the configuration
/// states an unknown form, integers. Beside modules that were recognized, only integers of 8 bits in two or more
/// dimensions count. \throws Error kUnsupported  there are some
void refuse_unknown_codes(const Catalog& catalog, const QuantizedPart& part, const StatedSchemes& stated);

/// For a weight with exponents in the form of MXFP4: the reason why it is of a different kind, for people; empty if it
/// is MXFP4.
std::string other_kind_of_mx(const Tensor& weight, const Tensor& scale, std::span<const QuantizationScheme> schemes);

/// For a weight of AWQ: the reason why it has a version or bits without a formula, for people; empty if it is gemm with
/// 4 bits. Codes of gemv have the shapes of GPTQ.
std::string other_kind_of_awq(const Tensor& weight, const Tensor& scale, std::span<const QuantizationScheme> schemes);

/// Whether a method of int8 tensors, which this library does not know, packs codes of 4 bits: SGLang's "w4afp8".
bool has_packed_bytes(std::string_view method);

/// Whether a model applies the tensor to the inputs of its module before the weight, or to the outputs: factors,
/// rotations, a remainder of low rank. A plain weight would lack it.
bool is_beside_weight(std::string_view name);
/// "the module also applies 'a.input_rotation', ..."
std::string beside_weight_text(std::string_view name);
/// Looks for such tensors in modules without a weight, and if anything is quantized, among the plain tensors. \throws
/// Error kUnsupported  there are some
void refuse_beside_weights(const Catalog& catalog, const QuantizedPart& part);

/// Whether the header of ComfyUI's files states modules in the order of a GPU's kernels.
bool has_tiles_of_comfy(const Catalog& catalog);

}  // namespace shard
