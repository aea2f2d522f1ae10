/// \file
/// The `_extra_state` objects that Megatron-core's linear layers save. Inside formats/megatron_dist only.
///
/// Each linear layer of Core's own (no Transformer Engine) saves one object beside its weight, which is None. Core's
/// load asks for every one of them by its defaults. Core 0.16.1 and 0.19.2 write the same names: a layer below
/// `decoder.layers` or `mtp.layers` whose name begins with `linear_`, and `eh_proj` of multi-token prediction. Neither
/// embedding, head, router nor norms have one.
#pragma once

#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::megatron_dist {

/// At most this many are made. DeepSeek-V3 has 31,000.
inline constexpr std::size_t kMaxExtraStates = 1 << 20;

/// The names of the items that a save of these tensors has: `MODULE._extra_state/shard_OFFSET_SHAPE`, one for each
/// matrix of a stacked weight, in the order of tensors and offsets. Tensors without elements have none.
/// \throws Error kUnsupported  more than kMaxExtraStates.
std::vector<std::string> extra_state_names(const Catalog& catalog);

}  // namespace shard::megatron_dist
