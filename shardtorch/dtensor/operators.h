/// \file
/// Rules of placements: how each operator runs on DTensors. Inside shardtorch/dtensor only.
///
/// An operator with a rule redistributes its tensors to the placements of the rule's plan, runs on the local tensors
/// with their autograd, and converts the results to DTensors. An operator without one that is composed of others runs
/// as those. Rules choose the placements of torch 2.11 (torch/distributed/tensor/_ops).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardtorch/dtensor/device_mesh.h"
#include "shardtorch/dtensor/redistribution_plan.h"

namespace shard::dtensor {

/// A tensor argument. A plain tensor of one element counts as replicated.
struct Operand {
  TensorLayout layout;
  std::int64_t item_size;  ///< Bytes of an element.
};

/// The call of an operator with at least one DTensor.
struct OperatorCall {
  const c10::FunctionSchema& schema;
  at::ArrayRef<c10::IValue> args;  ///< By position, with defaults filled in.
  DeviceMeshPtr mesh;
  std::vector<Operand> tensors;  ///< The defined tensors among `args`, those of lists too, in order.

  std::string_view name() const;  ///< "add_" for "aten::add_.Tensor".
  std::string full_name() const;  ///< "aten::add_.Tensor"
  bool is_in_place() const;       ///< The first argument is changed and returned.
  /// The argument of that name; none if the schema has no such argument.
  c10::IValue arg(std::string_view name) const;
  std::size_t position_of(std::string_view name) const;  ///< \throws c10::Error  no such argument
  const Sizes& shape(std::size_t tensor) const { return tensors[tensor].layout.shape; }
  const Placements& placements(std::size_t tensor) const { return tensors[tensor].layout.placements; }
  std::int64_t dims(std::size_t tensor) const { return static_cast<std::int64_t>(shape(tensor).size()); }
  /// Argument `name` as a dimension of tensor 0, from the front. \throws c10::IndexError
  std::int64_t dim_arg(std::string_view name) const;
  /// This rank's part of a tensor with that layout.
  Sizes own_sizes(const Sizes& shape, const Placements& placements) const;
  Placements replicas() const { return Placements(mesh->ndim(), Replicate()); }
};

struct OperatorResult {
  Sizes shape;  ///< The whole tensor's.
  Placements placements;
};

using Tensors = std::vector<at::Tensor>;
struct OperatorPlan {
  std::vector<Placements> inputs;       ///< The placements in which the operator takes each tensor.
  std::vector<OperatorResult> results;  ///< By result. The elements of a result that is a list count each.
  /// Arguments that differ for local tensors, by position.
  std::vector<std::pair<std::size_t, c10::IValue>> local_args{};
  /// Computes the local results. Empty: the operator itself does.
  std::function<Tensors(const Tensors& locals)> compute{};
};

/// \throws  the rule's own errors: placements that the operator does not support, invalid arguments.
using OperatorRule = OperatorPlan (*)(const OperatorCall& call);

// A rule of each family, or null if the operator is not in it.
OperatorRule elementwise_rule(const OperatorCall& call);  ///< elementwise_rules.cpp
OperatorRule creation_rule(const OperatorCall& call);     ///< creation_rules.cpp: also copies and random numbers
OperatorRule view_rule(const OperatorCall& call);         ///< view_rules.cpp
OperatorRule piece_rule(const OperatorCall& call);        ///< piece_rules.cpp: slices, and concatenations
OperatorRule reduction_rule(const OperatorCall& call);    ///< reduction_rules.cpp
OperatorRule layer_rule(const OperatorCall& call);        ///< layer_rules.cpp: norms, softmax, losses
OperatorRule product_rule(const OperatorCall& call);      ///< product_rules.cpp: matrix products and embeddings

// operands.cpp
/// The local tensor of argument `index` in the placements of the plan: `local` redistributed, or `local` itself. A
/// collective if placements differ, and so is its backward. On an axis whose ranks compute different things, the
/// gradient of a replica is a term of the sum over those ranks.
/// \throws c10::NotImplementedError  a gradient is recorded, and the result is a maximum, minimum or product of terms
///   whose elements the operator computes.
at::Tensor prepared(const at::Tensor& local, std::size_t index, const OperatorCall& call, const OperatorPlan& plan);

/// at::equal on DTensors: true on all ranks if the tensors are equal. A collective of the mesh.
bool are_equal(const OperatorCall& call);

/// The same kind of shard of a different dimension. \pre `placement` is a shard
Placement shard_of(const Placement& placement, std::int64_t dim);
/// Replicate instead of Partial and of shards of `dims`.
Placements replicated_on(const Placements& placements, const Sizes& dims);
/// The number of shards of each dimension of a tensor of `dims` dimensions.
Sizes shards_by_dim(const Placements& placements, const Sizes& mesh, std::int64_t dims);

}  // namespace shard::dtensor
