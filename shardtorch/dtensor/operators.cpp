// Every operator with a DTensor or a ShardedTensor comes here, before autograd and all kernels.
#include "shardtorch/dtensor/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <ranges>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard::dtensor {

namespace {

using Stack = torch::jit::Stack;

/// Visits the defined tensors among arguments, in order.
template <class Values, class Visit>
void for_each_tensor(Values&& values, const Visit& visit) {
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (!value.isList()) continue;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

/// The mesh of the DTensors; null if there is none.
DeviceMeshPtr common_mesh(at::ArrayRef<c10::IValue> args, const c10::FunctionSchema& schema) {
  DeviceMeshPtr mesh;
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    const DTensor own = DTensor::of(tensor);
    if (!own.defined()) return;
    if (mesh == nullptr) mesh = own.device_mesh();
    SHARD_CHECK_VALUE(*mesh == *own.device_mesh(), schema.name(),
                      ": the tensors are on different meshes: ", mesh->str(), " and ", own.device_mesh()->str());
  });
  return mesh;
}

/// A plain tensor counts as a replica on every rank, so it must be a number: larger ones could differ.
Operand operand_of(const at::Tensor& tensor, const OperatorCall& call) {
  const DTensor own = DTensor::of(tensor);
  if (own.defined()) return {own.layout(), static_cast<std::int64_t>(tensor.dtype().itemsize())};
  SHARD_CHECK(tensor.numel() == 1, call.full_name(),
              ": got mixed at::Tensor and DTensor, need to convert all at::Tensor to DTensor before calling "
              "distributed operators! distribute_tensor and DTensor::from_local convert them");
  return {{tensor.sizes().vec(), call.mesh->shape(), call.replicas()},
          static_cast<std::int64_t>(tensor.dtype().itemsize())};
}

OperatorRule rule_of(const OperatorCall& call) {
  static constexpr std::array kFamilies{creation_rule,  elementwise_rule, view_rule,   piece_rule,
                                        reduction_rule, layer_rule,       product_rule};
  for (const auto family : kFamilies) {
    if (const OperatorRule rule = family(call)) return rule;
  }
  return nullptr;
}

/// `args` with `locals` in the places of tensors, and the plan's local arguments.
Stack local_args(const OperatorCall& call, const OperatorPlan& plan, const Tensors& locals) {
  Stack args = call.args.vec();
  std::size_t next = 0;
  const auto is_defined = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); };
  for (c10::IValue& arg : args) {
    if (is_defined(arg)) arg = locals[next++];
    if (!arg.isTensorList()) continue;
    c10::List<at::Tensor> list;
    for (std::size_t i = 0; i < arg.toListRef().size(); ++i) list.push_back(locals[next++]);
    arg = std::move(list);
  }
  for (const auto& [position, value] : plan.local_args) args[position] = value;
  return args;
}

Tensors tensors_of(const Stack& values) {
  Tensors tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const c10::IValue& element : value.toListRef()) tensors.push_back(element.toTensor());
  }
  return tensors;
}

/// Prepares this rank's tensors as the plan requires, which may communicate, and runs the operator on them.
Tensors computed(const c10::OperatorHandle& handle, const OperatorCall& call, const OperatorPlan& plan) {
  Tensors locals;
  for_each_tensor(call.args, [&](const at::Tensor& tensor) {
    const std::size_t i = locals.size();
    const DTensor own = DTensor::of(tensor);
    locals.push_back(prepared(own.defined() ? own.local() : tensor, i, call, plan));
  });
  if (plan.compute) return plan.compute(locals);
  Stack stack = local_args(call, plan, locals);
  handle.callBoxed(stack);
  return tensors_of(stack);
}

/// Strides of a tensor of `shape` whose dimensions are in the order of those of `local`. Expanded ones stay so.
Sizes strides_like(const at::Tensor& local, const Sizes& shape) {
  Sizes order(shape.size()), strides(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t d) { return local.stride(d); });
  std::int64_t stride = 1;
  for (const std::int64_t dim : std::views::reverse(order)) {
    const auto d = static_cast<std::size_t>(dim);
    const bool is_expanded = local.stride(dim) == 0 && local.size(dim) > 1;
    strides[d] = is_expanded ? 0 : stride;
    if (!is_expanded) stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

at::Tensor wrapped(const at::Tensor& local, const OperatorCall& call, const OperatorResult& result) {
  TensorLayout layout{result.shape, call.mesh->shape(), result.placements};
  return make_dtensor(local, call.mesh, std::move(layout), strides_like(local, result.shape)).as_tensor();
}

/// Replaces the arguments on the stack by DTensors with the results' placements. An in-place operator returns its first
/// argument.
void push_results(const OperatorCall& call, const OperatorPlan& plan, const Tensors& locals, Stack& stack) {
  if (call.is_in_place()) {
    SHARD_CHECK(plan.results.at(0).placements == call.placements(0), call.full_name(),
                ": in-place operations that require placement changes are not supported: the operation would change ",
                to_string(call.placements(0)), " to ", to_string(plan.results[0].placements),
                ". Please use the out-of-place version of this operation instead.");
    stack.push_back(call.args[0]);
    return;
  }
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < locals.size(); ++i) {
    results.push_back(locals[i].defined() ? wrapped(locals[i], call, plan.results.at(i)) : at::Tensor());
  }
  const auto& returns = call.schema.returns();
  const bool is_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  if (is_list) return stack.push_back(c10::IValue(std::move(results)));
  for (at::Tensor& result : results) stack.push_back(std::move(result));
}

void add_operands(OperatorCall& call) {
  SHARD_CHECK_VALUE(call.mesh->is_member(), call.full_name(), ": this rank is not on ", call.mesh->str());
  for_each_tensor(call.args, [&](const at::Tensor& tensor) { call.tensors.push_back(operand_of(tensor, call)); });
}

/// Functions of the handle itself, and those whose result is not a tensor; nothing for others.
std::optional<c10::IValue> special_result(OperatorCall& call) {
  const std::string_view name = call.name();
  if (name == "_has_compatible_shallow_copy_type") return false;  // Tensor::set_data: a wrapper has no elements.
  if (name == "requires_grad_") {
    at::Tensor local = DTensor::of(call.args[0].toTensor()).local();
    local.requires_grad_(call.args[1].toBool());
    return call.args[0];
  }
  if (name == "item" || name == "_local_scalar_dense") {
    return DTensor::of(call.args[0].toTensor()).full_tensor().detach().item();
  }
  if (name != "equal") return std::nullopt;
  add_operands(call);
  return are_equal(call);
}

/// Operators with a rule run by their plan. Others may be compositions of operators with rules, which then arrive here
/// one by one.
void run_on_dtensors(const c10::OperatorHandle& handle, DeviceMeshPtr mesh, Stack& stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const std::size_t count = schema.arguments().size();
  const Stack args(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  OperatorCall call{schema, args, std::move(mesh), {}};
  if (const OperatorRule rule = rule_of(call)) {
    SHARD_CHECK(std::ranges::none_of(schema.arguments(), &c10::Argument::is_out), call.full_name(),
                " with `out` is not supported for DTensor!");
    add_operands(call);
    const OperatorPlan plan = rule(call);
    const Tensors locals = computed(handle, call, plan);
    torch::jit::drop(stack, count);
    return push_results(call, plan, locals, stack);
  }
  if (std::optional<c10::IValue> result = special_result(call)) {
    torch::jit::drop(stack, count);
    stack.push_back(std::move(*result));
    return;
  }
  constexpr auto kComposed = c10::DispatchKey::CompositeImplicitAutograd;
  SHARD_CHECK(
      handle.hasKernelForDispatchKey(kComposed), call.full_name(),
      " is not supported for DTensor! Compute on local() of each rank, and build a DTensor from the result with "
      "DTensor::from_local");
  handle.callBoxedForDispatchKey(kComposed, stack);
}

void run_boxed(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  const at::ArrayRef<c10::IValue> args = torch::jit::last(*stack, handle.schema().arguments().size());
  DeviceMeshPtr mesh = common_mesh(args, handle.schema());
  mesh == nullptr ? run_on_sharded_tensors(handle, *stack) : run_on_dtensors(handle, std::move(mesh), *stack);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  static_assert(ShardedTensorImpl::kDispatchKey == c10::DispatchKey::DeferredInit);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
}

}  // namespace

std::string_view OperatorCall::name() const {
  std::string_view name = schema.name();
  constexpr std::string_view kTorch = "aten::";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  return name;
}

std::string OperatorCall::full_name() const {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

bool OperatorCall::is_in_place() const {
  if (schema.arguments().empty() || schema.returns().empty()) return false;
  const c10::AliasInfo* const alias = schema.arguments()[0].alias_info();
  return alias != nullptr && alias->isWrite();
}

std::size_t OperatorCall::position_of(std::string_view name) const {
  const auto index = schema.argumentIndexWithName(name);
  SHARD_CHECK(index.has_value(), full_name(), " has no argument ", name);
  return static_cast<std::size_t>(*index);
}

c10::IValue OperatorCall::arg(std::string_view name) const {
  const auto index = schema.argumentIndexWithName(name);
  return index ? args[static_cast<std::size_t>(*index)] : c10::IValue();
}

std::int64_t OperatorCall::dim_arg(std::string_view name) const { return wrapped_dim(arg(name).toInt(), dims(0)); }

Sizes OperatorCall::own_sizes(const Sizes& shape, const Placements& placements) const {
  return part_of({shape, mesh->shape(), placements}, *mesh->index()).local_sizes;
}

Placement shard_of(const Placement& placement, std::int64_t dim) {
  if (const auto* const strided = std::get_if<StridedShard>(&placement))
    return StridedShard{dim, strided->split_factor};
  return Shard{dim};
}

Placements replicated_on(const Placements& placements, const Sizes& dims) {
  return replicated_where(placements, [&](const Placement& each) {
    return is_partial(each) || std::ranges::find(dims, sharded_dim(each)) != dims.end();
  });
}

Sizes shards_by_dim(const Placements& placements, const Sizes& mesh, std::int64_t dims) {
  Sizes shards(static_cast<std::size_t>(dims), 1);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const std::int64_t dim = sharded_dim(placements[axis]);
    if (dim >= 0) shards[static_cast<std::size_t>(dim)] *= mesh[axis];
  }
  return shards;
}

}  // namespace shard::dtensor
