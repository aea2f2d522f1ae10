#include "shardtorch/sharded_tensor/builtin_ops.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {
namespace {

using Args = at::ArrayRef<c10::IValue>;
using Result = std::optional<c10::IValue>;

template <class Verdict>
bool true_on_all_ranks(Group& group, const Verdict& verdict, const Words& facts) {
  const Bytes yes{std::byte{1}};
  const auto verdicts = all_gather_or_throw(
      group, [&] { return verdict() ? yes : Bytes(); }, facts);
  return std::ranges::all_of(verdicts, [&](const Bytes& one) { return one == yes; });
}

/// Local shards are in the order of their creator, which may differ between tensors with equal metadata.
std::vector<const Shard*> by_box(const std::vector<Shard>& shards) {
  std::vector<const Shard*> sorted;
  for (const Shard& shard : shards) sorted.push_back(&shard);
  std::ranges::sort(sorted, {}, [](const Shard* shard) {
    return std::tie(shard->metadata.shard_offsets, shard->metadata.shard_sizes);
  });
  return sorted;
}

bool same_place(const ShardMetadata& one, const ShardMetadata& other) {
  return one.shard_offsets == other.shard_offsets && one.shard_sizes == other.shard_sizes;
}

bool same_box(const Shard* one, const Shard* other) { return same_place(one->metadata, other->metadata); }

template <class SameData>
bool same_local_shards(const ShardedTensorImpl& a, const ShardedTensorImpl& b, const SameData& same_data) {
  return a.metadata == b.metadata &&
         std::ranges::equal(by_box(a.local_shards), by_box(b.local_shards), [&](const Shard* one, const Shard* other) {
           return one->metadata == other->metadata && same_data(one->tensor, other->tensor);
         });
}

/// The facts that all ranks compare: these arguments, and both tensors.
Words facts_of_both(Words arguments, const ShardedTensorImpl& a, const ShardedTensorImpl& b) {
  for (const std::string& fact : facts_of(a.metadata)) arguments.push_back("first tensor: " + fact);
  for (const std::string& fact : facts_of(b.metadata)) arguments.push_back("second tensor: " + fact);
  return arguments;
}

template <class SameData>
bool compare(const ShardedTensor& a, const ShardedTensor& b, const Words& arguments, const SameData& same_data) {
  const ShardedTensorImpl &one = impl_of(a), &other = impl_of(b);
  if (one.group != other.group) return false;
  const auto verdict = [&] { return same_local_shards(one, other, same_data); };
  if (!one.group) return verdict();
  if (!one.group->is_member()) return true;
  return true_on_all_ranks(one.group->group(), verdict, facts_of_both(arguments, one, other));
}

/// A tensor like `like`, with these local shards.
template <class Change>
ShardedTensor with_local_tensors(const ShardedTensor& like, const Change& change, bool requires_grad) {
  const ShardedTensorImpl& old = impl_of(like);
  ShardedTensorMetadata metadata = old.metadata;
  metadata.tensor_properties.requires_grad = requires_grad;
  auto impl = c10::make_intrusive<ShardedTensorImpl>(old.spec, std::move(metadata));
  impl->group = old.group;
  impl->init_rrefs = old.init_rrefs;
  for (const auto& shard : old.local_shards) impl->local_shards.emplace_back(change(shard.tensor), shard.metadata);
  init_remote_shards(impl);
  return ShardedTensor::of(at::Tensor(std::move(impl)));
}

// --- Operators of the dispatcher ------------------------------------------------------------------------------------

/// Argument `index`; undefined if it is not a ShardedTensor.
ShardedTensor sharded_arg(Args args, std::size_t index) {
  return index < args.size() && args[index].isTensor() ? ShardedTensor::of(args[index].toTensor()) : ShardedTensor();
}

bool is_given(Args args, std::size_t index) { return index < args.size() && !args[index].isNone(); }

/// Argument `index`, or `otherwise` if it is missing or None.
c10::IValue arg_or(Args args, std::size_t index, c10::IValue otherwise) {
  return is_given(args, index) ? args[index] : std::move(otherwise);
}

std::pair<ShardedTensor, ShardedTensor> both_sharded(Args args, std::string_view op) {
  SHARD_CHECK_VALUE(args.size() >= 2, "Expected two arguments for torch.", op);
  std::pair tensors(sharded_arg(args, 0), sharded_arg(args, 1));
  SHARD_CHECK_TYPE(tensors.first.defined() && tensors.second.defined(), "Both arguments to torch.", op,
                   " need to be of type ShardedTensor");
  return tensors;
}

Result run_equal(Args args) {
  const auto [a, b] = both_sharded(args, "equal");
  return equal(a, b);
}

Result run_allclose(Args args) {
  const auto [a, b] = both_sharded(args, "allclose");
  return allclose(a, b, arg_or(args, 2, 1e-5).toDouble(), arg_or(args, 3, 1e-8).toDouble(),
                  arg_or(args, 4, false).toBool());
}

Result run_clone(Args args) {
  SHARD_CHECK(arg_or(args, 1, at::MemoryFormat::Preserve).toMemoryFormat() == at::MemoryFormat::Preserve,
              "Only support torch.preserve_format for ShardedTensor!");
  return clone(sharded_arg(args, 0)).as_tensor();
}

Result run_detach(Args args) { return detach(sharded_arg(args, 0)).as_tensor(); }

Result run_requires_grad(Args args) {
  return requires_grad_(sharded_arg(args, 0), arg_or(args, 1, true).toBool()).as_tensor();
}

Result run_copy(Args args) {
  const auto to = sharded_arg(args, 0), from = sharded_arg(args, 1);
  if (!to.defined() || !from.defined()) return std::nullopt;
  return copy_(to, from, arg_or(args, 2, false).toBool()).as_tensor();
}

Result run_type_as(Args args) {
  const auto tensor = sharded_arg(args, 0);
  if (!tensor.defined() || args.size() < 2) return std::nullopt;
  return tensor.to(args[1].toTensor().scalar_type()).as_tensor();
}

/// aten::to by options (8 arguments), device and dtype, dtype, or another tensor.
Result run_to(Args args) {
  const auto tensor = sharded_arg(args, 0);
  if (!tensor.defined() || args.size() < 2) return std::nullopt;
  ShardedTensor::ToOptions options;
  std::size_t flags = 2;  // The index of non_blocking.
  if (args.size() == 8) {
    if (!args[1].isNone()) options.dtype = args[1].toScalarType();
    if (!args[3].isNone()) options.device = args[3].toDevice();
    flags = 5;
  } else if (args[1].isTensor()) {
    options.device = args[1].toTensor().device();
    options.dtype = args[1].toTensor().scalar_type();
  } else if (args[1].isDevice()) {
    options.device = args[1].toDevice();
    options.dtype = args[2].toScalarType();
    flags = 3;
  } else {
    options.dtype = args[1].toScalarType();
  }
  options.non_blocking = arg_or(args, flags, false).toBool();
  options.copy = arg_or(args, flags + 1, false).toBool();
  options.memory_format = arg_or(args, flags + 2, at::MemoryFormat::Preserve).toMemoryFormat();
  return tensor.to(options).as_tensor();
}

bool has_same_shards(const ShardedTensorImpl& a, const ShardedTensorImpl& b) {
  return a.group == b.group && !a.init_rrefs && !b.init_rrefs && a.metadata.size == b.metadata.size &&
         std::ranges::equal(a.metadata.shards_metadata, b.metadata.shards_metadata, same_place) &&
         std::ranges::equal(a.local_shards, b.local_shards, same_place, &Shard::metadata, &Shard::metadata);
}

/// Whether Tensor::set_data may give the first tensor the elements of the second one.
Result run_has_compatible_shallow_copy_type(Args args) {
  const auto to = sharded_arg(args, 0), from = sharded_arg(args, 1);
  SHARD_CHECK(to.defined(),
              "cannot give the elements of a sharded parameter to a plain one. If clone() does so, shard the parameter "
              "in reset(), or create a second module and load the first one's state_dict");
  return from.defined() && has_same_shards(impl_of(to), impl_of(from));
}

// --- Operators that create a tensor like a ShardedTensor, or fill a tensor in place, as torch::nn::init does ---------
//
// Source: torch/distributed/_shard/sharded_tensor/_ops/init.py (torch 2.11).

/// The arguments dtype, layout, device, pin_memory and memory_format at the end of each schema, from `first` on.
CreateOptions options_like(const ShardedTensor& tensor, Args args, std::size_t first) {
  CreateOptions options;
  options.process_group = tensor.process_group();
  if (is_given(args, first)) options.dtype = args[first].toScalarType();
  if (is_given(args, first + 1)) options.layout = args[first + 1].toLayout();
  SHARD_CHECK_TYPE(!is_given(args, first + 2) || args[first + 2].toDevice() == tensor.as_tensor().device(),
                   "a tensor like a ShardedTensor is on the devices of its shards, so it takes no device");
  if (is_given(args, first + 3)) options.pin_memory = args[first + 3].toBool();
  if (is_given(args, first + 4)) options.memory_format = args[first + 4].toMemoryFormat();
  if (options.memory_format == at::MemoryFormat::Preserve) options.memory_format = at::MemoryFormat::Contiguous;
  return options;
}

/// The new tensor, or nothing if the first argument is not sharded.
Result made_like(Args args, std::size_t first_option, const FillShard& fill) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined()) return std::nullopt;
  const CreateOptions options = options_like(tensor, args, first_option);
  return make_filled(tensor.sharding_spec(), tensor.sizes(), options, fill).as_tensor();
}

Result filled(Args args, const FillShard& fill) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined()) return std::nullopt;
  fill_shards(tensor.local_shards(), fill);
  return tensor.as_tensor();
}

std::optional<at::Generator> generator(Args args, std::size_t index) {
  return is_given(args, index) ? std::optional(args[index].toGenerator()) : std::nullopt;
}

/// rand_like and randn_like have a second schema with a generator after the tensor.
Result drawn_like(Args args, const std::function<void(at::Tensor, std::optional<at::Generator>)>& draw) {
  constexpr std::size_t kWithGenerator = 7;
  const bool has_generator = args.size() == kWithGenerator;
  const auto source = has_generator ? generator(args, 1) : std::nullopt;
  return made_like(args, has_generator ? 2 : 1, [&](at::Tensor shard) { draw(std::move(shard), source); });
}

Result run_empty_like(Args args) {
  return made_like(args, 1, [](const at::Tensor&) {});
}
Result run_full_like(Args args) {
  return made_like(args, 2, [&](at::Tensor shard) { shard.fill_(args[1].toScalar()); });
}
Result run_ones_like(Args args) {
  return made_like(args, 1, [](at::Tensor shard) { shard.fill_(1); });
}
Result run_zeros_like(Args args) {
  return made_like(args, 1, [](at::Tensor shard) { shard.zero_(); });
}
Result run_rand_like(Args args) {
  return drawn_like(args, [](at::Tensor shard, auto source) { shard.uniform_(0, 1, std::move(source)); });
}
Result run_randn_like(Args args) {
  return drawn_like(args, [](at::Tensor shard, auto source) { shard.normal_(0, 1, std::move(source)); });
}

Result run_fill(Args args) {
  return filled(args, [&](at::Tensor shard) {
    args[1].isTensor() ? shard.fill_(args[1].toTensor()) : shard.fill_(args[1].toScalar());
  });
}
Result run_zero(Args args) {
  return filled(args, [](at::Tensor shard) { shard.zero_(); });
}
Result run_uniform(Args args) {
  return filled(args, [&](at::Tensor shard) {
    shard.uniform_(arg_or(args, 1, 0.0).toDouble(), arg_or(args, 2, 1.0).toDouble(), generator(args, 3));
  });
}
Result run_normal(Args args) {
  return filled(args, [&](at::Tensor shard) {
    shard.normal_(arg_or(args, 1, 0.0).toDouble(), arg_or(args, 2, 1.0).toDouble(), generator(args, 3));
  });
}

// --- The op "linear" -------------------------------------------------------------------------------------------------
//
// torch::nn::functional::linear is not an operator but C++ code that calls weight.t(), then addmm or matmul. If the
// program registered an op "linear" for a sharded weight, t() returns a ShardedTensor that remembers the weight, and
// the product with it calls that op. So an unchanged torch::nn::Linear reaches it.

ShardMetadata transposed(ShardMetadata shard) {
  std::ranges::reverse(shard.shard_offsets);
  std::ranges::reverse(shard.shard_sizes);
  return shard;
}

/// A chunk spec remains one. Other specs are inferred from the shards.
ShardingSpecPtr transposed(const ShardingSpec& spec, const std::vector<ShardMetadata>& shards) {
  const ChunkShardingSpec* const chunk = as_chunk(spec);
  if (chunk == nullptr) return infer_spec(shards);
  return chunk_spec(1 - (chunk->dim() + 2) % 2, chunk->placements());
}

/// \pre two dimensions
ShardedTensor transposed(const ShardedTensor& tensor) {
  ShardedTensorMetadata metadata = tensor.metadata();
  std::ranges::reverse(metadata.size);
  std::ranges::transform(metadata.shards_metadata, metadata.shards_metadata.begin(),
                         [](const ShardMetadata& shard) { return transposed(shard); });
  ShardingSpecPtr spec = transposed(*tensor.sharding_spec(), metadata.shards_metadata);
  auto impl = c10::make_intrusive<ShardedTensorImpl>(std::move(spec), std::move(metadata));
  impl->group = tensor.process_group();
  for (const Shard& shard : tensor.local_shards()) {
    impl->local_shards.emplace_back(shard.tensor.t(), transposed(shard.metadata));
  }
  impl->transposed_of = tensor.as_tensor();
  return ShardedTensor::of(at::Tensor(std::move(impl)));
}

/// Calls linear(input, weight, bias), where argument `weight_at` is a transposed weight.
Result linear(Args args, std::size_t weight_at, const c10::IValue& input, const c10::IValue& bias) {
  const ShardedTensor product = sharded_arg(args, weight_at);
  if (!product.defined() || !impl_of(product).transposed_of.defined()) return std::nullopt;
  return call_op("linear", {input, impl_of(product).transposed_of, bias});
}

Result run_t(Args args) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined() || tensor.dim() != 2 || !has_registered_op(*tensor.sharding_spec(), "linear")) return {};
  return transposed(tensor).as_tensor();
}

Result run_matmul(Args args) { return linear(args, 1, args[0], c10::IValue()); }

Result run_addmm(Args args) {
  const bool is_plain = arg_or(args, 3, 1).toScalar().equal(1) && arg_or(args, 4, 1).toScalar().equal(1);
  return is_plain ? linear(args, 2, args[1], args[0]) : std::nullopt;
}

}  // namespace

BuiltinOp builtin_op(std::string_view name) {
  static constexpr auto kOps = std::to_array<std::pair<std::string_view, BuiltinOp>>({
      {"_has_compatible_shallow_copy_type", run_has_compatible_shallow_copy_type},
      {"addmm", run_addmm},
      {"allclose", run_allclose},
      {"clone", run_clone},
      {"copy_", run_copy},
      {"detach", run_detach},
      {"empty_like", run_empty_like},
      {"equal", run_equal},
      {"fill_", run_fill},
      {"full_like", run_full_like},
      {"matmul", run_matmul},
      {"normal_", run_normal},
      {"ones_like", run_ones_like},
      {"rand_like", run_rand_like},
      {"randn_like", run_randn_like},
      {"requires_grad_", run_requires_grad},
      {"t", run_t},
      {"to", run_to},
      {"type_as", run_type_as},
      {"uniform_", run_uniform},
      {"zero_", run_zero},
      {"zeros_like", run_zeros_like},
  });
  const auto found = std::ranges::find(kOps, name, &std::pair<std::string_view, BuiltinOp>::first);
  return found == kOps.end() ? nullptr : found->second;
}

void check_same_group(at::ArrayRef<ShardedTensor> tensors) {
  for (const auto& tensor : tensors) {
    SHARD_CHECK(impl_of(tensor).group == impl_of(tensors.front()).group,
                "All distributed tensors should use the same ProcessGroup if used together in an op.");
  }
}

bool has_same_boxes(const ShardedTensor& a, const ShardedTensor& b) {
  return std::ranges::equal(by_box(a.local_shards()), by_box(b.local_shards()), same_box);
}

bool copy_local_shards(const ShardedTensor& to, const ShardedTensor& from, bool non_blocking) {
  const auto targets = by_box(to.local_shards()), sources = by_box(from.local_shards());
  if (!std::ranges::equal(targets, sources, same_box)) return false;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i]->tensor.copy_(sources[i]->tensor, non_blocking);
  return true;
}

bool equal(const ShardedTensor& a, const ShardedTensor& b) {
  return compare(a, b, {}, [](const at::Tensor& one, const at::Tensor& other) { return at::equal(one, other); });
}

bool allclose(const ShardedTensor& a, const ShardedTensor& b, double rtol, double atol, bool equal_nan) {
  const Words arguments{c10::str("rtol=", rtol), c10::str("atol=", atol),
                        equal_nan ? "equal_nan=true" : "equal_nan=false"};
  return compare(a, b, arguments, [&](const at::Tensor& one, const at::Tensor& other) {
    return at::allclose(one, other, rtol, atol, equal_nan);
  });
}

ShardedTensor clone(const ShardedTensor& tensor) {
  const bool requires_grad = tensor.requires_grad() && at::GradMode::is_enabled();
  return with_local_tensors(
      tensor, [](const at::Tensor& local) { return local.clone(); }, requires_grad);
}

ShardedTensor deepcopy(const ShardedTensor& tensor) {
  const auto copy = [](const at::Tensor& local) {
    return local.detach().clone().set_requires_grad(local.requires_grad());
  };
  return with_local_tensors(tensor, copy, tensor.requires_grad());
}

ShardedTensor detach(const ShardedTensor& tensor) {
  return with_local_tensors(
      tensor, [](const at::Tensor& local) { return local.detach(); }, false);
}

ShardedTensor requires_grad_(ShardedTensor tensor, bool requires_grad) {
  ShardedTensorImpl& impl = impl_of(tensor);
  impl.set_requires_grad(requires_grad);
  for (auto& shard : impl.local_shards) shard.tensor.requires_grad_(requires_grad);
  impl.metadata.tensor_properties.requires_grad = requires_grad;
  return tensor;
}

ShardedTensor copy_(ShardedTensor to, const ShardedTensor& from, bool non_blocking) {
  check_same_group({to, from});
  const ShardedTensorMetadata &target = to.metadata(), &source = from.metadata();
  SHARD_CHECK(target.size == source.size && target.shards_metadata == source.shards_metadata &&
                  copy_local_shards(to, from, non_blocking),
              "inplace copy can only happen between two ShardedTensor with same metadata!");
  return to;
}

ShardedTensor type_as(const ShardedTensor& tensor, const ShardedTensor& other) { return tensor.to(other.dtype()); }

}  // namespace shard
