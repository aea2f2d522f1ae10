/// \file
/// Where parameters lie in the flat buffers of Megatron's distributed optimizer, as distrib_optim.pt has them. Pure.
///
/// Source: megatron/core/distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py of core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shard::megatron {

/// The first element of each parameter, in the order of the model.
///
/// Parameters lie in the reverse order of the model's, each from a multiple of 64 elements of its bucket on. A bucket's
/// end is stored without padding, and nothing says where buckets end. If all parameters but the model's first one have
/// multiples of 64 elements, that does not matter; else a buffer of one bucket is longer than all others.
/// \param elements  of the buffer
/// \returns nothing where the buffer has another length than one bucket of these parameters, so that their places are
///   not known.
std::optional<std::vector<std::int64_t>> begins_in_buffer(std::span<const std::int64_t> numels, std::int64_t elements);

}  // namespace shard::megatron
