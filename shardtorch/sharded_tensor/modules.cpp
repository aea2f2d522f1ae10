#include "shardtorch/sharded_tensor/modules.h"

#include <algorithm>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"

namespace shard {
namespace {

/// Access to parameters: torch::nn::Module lets only derived classes replace them.
struct Parameters : torch::nn::Module {
  static at::Tensor* find(torch::nn::Module& module, const std::string& name) {
    return (module.*(&Parameters::parameters_)).find(name);
  }
};

/// "Linear" for torch::nn::LinearImpl: the name without namespaces, template arguments and the suffix "Impl".
std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  name.erase(std::min(name.find('<'), name.size()));
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.erase(name.size() - 4);
  return name;
}

const char* kind_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined one";
  return ShardedTensor::of(tensor).defined() ? "ShardedTensor" : "Tensor";
}

/// \throws c10::ValueError  `tensor` cannot become sharded.
void check_shardable(const std::string& path, const at::Tensor& tensor) {
  SHARD_CHECK_VALUE(tensor.defined() && !ShardedTensor::of(tensor).defined(), "Expected ", path,
                    " to be a Tensor, but found ", kind_of(tensor));
}

/// Checks the arguments of shard_parameter before anything is sent. `parameter` is null if the module has none.
void check_parameter(const torch::nn::Module& module, const std::string& name, const at::Tensor* parameter,
                     const at::Tensor& member) {
  SHARD_CHECK_ATTRIBUTE(parameter != nullptr, type_name(module), " has no attribute `", name, "`");
  const std::string path = type_name(module) + '.' + name;
  check_shardable(path, *parameter);
  check_shardable(path, member);
  SHARD_CHECK_VALUE(parameter->is_same(member), "Expected the member of ", path, ", but found another Tensor");
  SHARD_CHECK_VALUE(member.is_contiguous(), "param: ", name, " is not a contiguous Tensor");
}

}  // namespace

void ShardedAttributes::register_sharded_tensor(std::string name, ShardedTensor& member) {
  SHARD_CHECK_VALUE(!name.empty(), "The name of a sharded attribute must not be empty");
  SHARD_CHECK_VALUE(name.find('.') == std::string::npos,
                    "The name of a sharded attribute must not contain a dot, but found '", name, "'");
  SHARD_CHECK_VALUE(std::ranges::find(attributes_, name, &Attribute::name) == attributes_.end(),
                    "There is a sharded attribute '", name, "' already");
  attributes_.push_back({std::move(name), &member});
}

ShardedTensor shard_parameter(torch::nn::Module& module, const std::string& name, at::Tensor& member,
                              ShardingSpecPtr spec, int src_rank, ProcessGroupPtr group) {
  group = group_or_default(std::move(group));
  at::Tensor* const parameter = Parameters::find(module, name);
  const auto check = [&] { check_parameter(module, name, parameter, member); };
  group->is_member() ? agree(group->group(), check) : check();
  const auto sharded = shard_tensor(member.detach(), std::move(spec), src_rank, std::move(group));
  *parameter = member = requires_grad_(sharded).as_tensor();
  return sharded;
}

ShardedTensor reshard_output(ShardedTensor output, const ShardingSpecPtr& spec) { return output.reshard(spec); }

at::Tensor reshard_output(at::Tensor output, const ShardingSpecPtr& spec) {
  const auto sharded = ShardedTensor::of(output);
  return sharded.defined() ? reshard_output(sharded, spec).as_tensor() : output;
}

at::Tensor collect_local_shard(const ShardedTensor& output) {
  const at::Tensor local = output.local_tensor();
  const auto* const chunk = as_chunk(*output.sharding_spec());
  return chunk && local.size(chunk->dim()) == 1 ? local.squeeze(chunk->dim()) : local;
}

at::Tensor collect_local_shard(const at::Tensor& output) {
  const auto sharded = ShardedTensor::of(output);
  return sharded.defined() ? collect_local_shard(sharded) : output;
}

}  // namespace shard
