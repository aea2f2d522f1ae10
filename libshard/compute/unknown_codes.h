/// \file Errors for quantized modules that are incomplete, or that no form describes. Inside libshard/compute only.
#pragma once

#include <string>

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

/// StatedSchemes::unknown_form if no module has both a weight and scales: then their tensors are probably those of that
/// form. Otherwise empty. Cost: linear in the modules.
std::string unknown_form_of_all(const QuantizedPart& part, const StatedSchemes& stated);

/// For a module with a weight or with scales, but not both: kCorruption, or kUnsupported if its form is unknown.
/// \param unknown_form  see unknown_form_of_all
Error incomplete_module(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                        const std::string& unknown_form);

/// For a quantized checkpoint in which no module was recognized.
/// \throws Error kUnsupported  it has codes: of a form that is unknown here, or of sparse weights
void refuse_unknown_codes(const Catalog& catalog, const StatedSchemes& stated);

/// Whether the header of ComfyUI's files states modules in the order of a GPU's kernels.
bool has_tiles_of_comfy(const Catalog& catalog);

}  // namespace shard
