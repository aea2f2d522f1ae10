/// \file
/// An estimate of the time of a redistribution, by which rules choose among placements. Inside shardtorch/dtensor only.
#pragma once

#include "shardtorch/dtensor/operators.h"

namespace shard::dtensor {

/// The estimated microseconds of a redistribution to `to`; infinite from a shard to a Partial, between different
/// Partials, and between strided shards. `local_devices`: the devices of one host.
/// Source: redistribute_cost in torch/distributed/tensor/_collective_utils.py (torch 2.11).
double redistribution_cost(const Operand& from, const Placements& to, std::int64_t local_devices);

/// The index of the choice of placements, by tensor, to which the call's tensors are redistributed in the least time:
/// their own placements if there is such a choice, or the first that costs nothing, or the first of the cheapest.
/// \pre at least one choice
std::size_t cheapest(const std::vector<std::vector<Placements>>& choices, const OperatorCall& call);

}  // namespace shard::dtensor
