#include "shardtorch/sharded_tensor/sharded_tensor.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "libshard/core/box.h"
#include "shardtorch/sharded_tensor/local_metadata.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

using ImplPtr = c10::intrusive_ptr<ShardedTensorImpl>;

/// The shards in the metadata that this process allocates. Checks all placements, including those of other ranks.
std::vector<Shard> allocate_own(const ShardedTensorImpl& impl) {
  const int rank = world_rank(*impl.group);
  std::vector<Shard> shards;
  for (const ShardMetadata& shard : impl.metadata.shards_metadata) {
    const auto [owner, device] = resolve_placement(*impl.group, shard.placement);
    if (owner != rank) continue;
    shards.emplace_back(create_tensor(shard.shard_sizes, device, impl.metadata.tensor_properties), shard);
  }
  return shards;
}

at::Tensor finish(ImplPtr impl) {
  init_remote_shards(impl);
  return at::Tensor(std::move(impl));
}

at::Tensor finish(ImplPtr impl, std::vector<Shard> local_shards, ProcessGroupPtr group, bool init_rrefs) {
  impl->local_shards = std::move(local_shards);
  impl->group = std::move(group);
  impl->init_rrefs = init_rrefs;
  return finish(std::move(impl));
}

at::Tensor allocate(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options, const FillShard& fill) {
  const at::ScalarType dtype = options.dtype.value_or(c10::get_default_dtype_as_scalartype());
  ImplPtr impl = make_impl(std::move(spec), size,
                           {.dtype = dtype,
                            .layout = options.layout,
                            .requires_grad = options.requires_grad,
                            .memory_format = options.memory_format,
                            .pin_memory = options.pin_memory});
  impl->group = group_or_default(options.process_group);
  impl->init_rrefs = options.init_rrefs;
  SHARD_CHECK_VALUE(options.layout == at::kStrided, kOnlyStrided);
  SHARD_CHECK_VALUE(options.memory_format == at::MemoryFormat::Contiguous, kOnlyContiguous);
  impl->local_shards = allocate_own(*impl);
  if (fill) fill_shards(impl->local_shards, fill);
  return finish(std::move(impl));
}

/// The object for `metadata`. Its own metadata is rebuilt from `spec`, or inferred from its shards.
ImplPtr make_anew(const ShardedTensorMetadata& metadata, ShardingSpecPtr spec) {
  SHARD_CHECK_VALUE(!metadata.shards_metadata.empty(), "shards_metadata must not be empty!");
  SHARD_CHECK_VALUE(metadata.tensor_properties.layout == at::kStrided, kOnlyStrided);
  if (!spec) spec = infer_spec(metadata.shards_metadata);
  return make_impl(std::move(spec), metadata.size, metadata.tensor_properties);
}

void check_shards(const ShardedTensorMetadata& metadata) {
  check_no_overlap(metadata.shards_metadata);
  check_tensor(metadata.shards_metadata, metadata.size);
}

/// Non-empty shards by their offsets.
std::vector<ShardMetadata> with_elements(const ShardedTensorMetadata& metadata) {
  std::vector<ShardMetadata> shards;
  std::ranges::copy_if(metadata.shards_metadata, std::back_inserter(shards),
                       [](const ShardMetadata& shard) { return !is_empty(shard.shard_sizes); });
  std::ranges::sort(shards, {}, &ShardMetadata::shard_offsets);
  return shards;
}

void check_count(const ShardedTensorMetadata& metadata, std::size_t local_shards, const ProcessGroup& group) {
  const int rank = world_rank(group);
  std::size_t own = 0;
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    if (resolve_placement(group, shard.placement).first == rank) ++own;
  }
  SHARD_CHECK(own == local_shards, "Number of local shards (", local_shards,
              ") does not match number of local shards metadata in sharded_tensor_metadata (", own, ") on rank (", rank,
              ") ");
}

/// The properties that each local shard must have.
struct LocalShardCheck {
  const TensorProperties& properties;
  int rank;

  template <class Value>
  void expect(const char* property, const char* kind, const Value& expected, const Value& actual) const {
    SHARD_CHECK_VALUE(expected == actual, "Local shards' tensor ", property, " property is incompatible with ", kind,
                      " on rank ", rank, ": ", kind, " ", property, "=", expected, ", local shard tensor ", property,
                      "=", actual, ".");
  }
  void operator()(const Shard& shard) const {
    constexpr const char *kTensor = "tensor property", *kShard = "local ShardMetadata";
    const auto& [tensor, metadata] = shard;
    SHARD_CHECK(metadata.placement.has_value(), "Must specify placement for `Shard`!");
    expect("layout", kTensor, properties.layout, tensor.layout());
    SHARD_CHECK_VALUE(tensor.is_contiguous(), kOnlyContiguous);
    expect("size", kShard, at::IntArrayRef(metadata.shard_sizes), tensor.sizes());
    expect("pin_memory", kTensor, properties.pin_memory, tensor.is_pinned());
    expect("device", kShard, metadata.placement->device(), tensor.device());
    expect("dtype", kTensor, properties.dtype, tensor.scalar_type());
    expect("requires_grad", kTensor, properties.requires_grad, tensor.requires_grad());
  }
};

int rank_of_worker(const std::string& name) {
  const auto agent = current_rpc_agent();
  SHARD_CHECK(agent, "RPC framework needs to be initialized for using worker names: ", name);
  const auto worker = std::ranges::find(agent->workers(), name, &Worker::name);
  SHARD_CHECK_VALUE(worker != agent->workers().end(), "Invalid worker name: ", name);
  return worker->id;
}

/// Makes torch's functions that read or clear gradients of parameters throw if the gradients are those of local shards.
/// Otherwise they would silently skip a sharded parameter.
struct HandleAutogradMeta final : torch::autograd::AutogradMeta {
  explicit HandleAutogradMeta(const ShardedTensorImpl& of) : owner(of) {}

  void expect_no_gradient() const {
    for (const Shard& shard : owner.local_shards) {
      SHARD_CHECK(!shard.tensor.is_leaf() || !shard.tensor.grad().defined(),
                  "a sharded parameter has no gradient of its own: clip with shard::parallel::clip_grad_norm_, give "
                  "shard::parallel::local_parameters to the optimizer, and clear gradients with the optimizer's "
                  "zero_grad");
    }
  }
  at::Tensor& mutable_grad() override {
    expect_no_gradient();
    return grad_;
  }
  const at::Tensor& grad() const override {
    expect_no_gradient();
    return grad_;
  }

  const ShardedTensorImpl& owner;
};

}  // namespace

ShardedTensorImpl::ShardedTensorImpl(ShardingSpecPtr cut, ShardedTensorMetadata whole)
    : c10::TensorImpl(c10::DispatchKeySet(kDispatchKey), c10::scalarTypeToTypeMeta(whole.tensor_properties.dtype),
                      at::Device(at::kCPU)),
      spec(std::move(cut)),
      metadata(std::move(whole)) {
  set_sizes_contiguous(metadata.size);
  set_storage_access_should_throw();
  set_autograd_meta(std::make_unique<HandleAutogradMeta>(*this));
  if (metadata.tensor_properties.requires_grad) set_requires_grad(true);
}

ShardedTensorImpl::~ShardedTensorImpl() { leave_registry(*this); }

void ShardedTensorImpl::apply_requires_grad() {
  bool& known = metadata.tensor_properties.requires_grad;
  if (known == requires_grad()) return;
  known = requires_grad();
  for (const Shard& shard : local_shards) {
    if (shard.tensor.is_leaf()) shard.tensor.set_requires_grad(known);
  }
}

void ShardedTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  if (other.get() == this) return;
  const auto& from = static_cast<const ShardedTensorImpl&>(*other);
  for (std::size_t i = 0; i < local_shards.size(); ++i) {
    local_shards[i].tensor.set_data(from.local_shards[i].tensor);
    local_shards[i].metadata = from.local_shards[i].metadata;
  }
  const bool requires_gradient = metadata.tensor_properties.requires_grad;
  metadata = from.metadata;
  metadata.tensor_properties.requires_grad = requires_gradient;
  spec = from.spec;
  c10::TensorImpl::shallow_copy_from(other);
}

at::Tensor ShardedTensorImpl::own_gradient() const {
  return static_cast<const HandleAutogradMeta&>(*autograd_meta()).grad_;
}

const ProcessGroupPtr& ShardedTensorImpl::checked_group() const {
  SHARD_CHECK(group, "this ShardedTensor has no process group: it was made as a ShardedTensorBase");
  return group;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedTensorImpl::shallow_copy_and_detach(const c10::VariableVersion&,
                                                                               bool) const {
  SHARD_CHECK(false, "a second handle on the same elements is not supported for ShardedTensor!");
}
c10::intrusive_ptr<c10::TensorImpl> ShardedTensorImpl::shallow_copy_and_detach(c10::VariableVersion&&, bool) const {
  SHARD_CHECK(false, "a second handle on the same elements is not supported for ShardedTensor!");
}

ImplPtr make_impl(ShardingSpecPtr spec, at::IntArrayRef size, TensorProperties properties) {
  C10_LOG_API_USAGE_ONCE("torch.distributed._shard.sharded_tensor");
  SHARD_CHECK_VALUE(spec, "Expecting ShardingSpec but got: None");
  SHARD_CHECK_VALUE(size.size() <= static_cast<std::size_t>(kMaxDims), "a ShardedTensor has at most ", kMaxDims,
                    " dimensions, found ", size.size());
  at::detail::check_size_nonnegative(size);
  properties.memory_format = at::MemoryFormat::Contiguous;
  ShardedTensorMetadata metadata = spec->build_metadata(size, properties);
  return c10::make_intrusive<ShardedTensorImpl>(std::move(spec), std::move(metadata));
}

int world_rank(const ProcessGroup& group) {
  return group.is_member() ? group.global_rank_of(group.rank()) : default_group()->rank();
}

std::vector<std::string> facts_of(const ShardedTensorMetadata& metadata) {
  const TensorProperties& properties = metadata.tensor_properties;
  std::vector<std::string> facts{c10::str("size=", at::IntArrayRef(metadata.size)),
                                 c10::str("dtype=", properties.dtype),
                                 c10::str("layout=", properties.layout),
                                 c10::str("requires_grad=", properties.requires_grad ? "true" : "false"),
                                 c10::str("memory_format=", properties.memory_format),
                                 c10::str("pin_memory=", properties.pin_memory ? "true" : "false"),
                                 c10::str("number of shards=", metadata.shards_metadata.size())};
  for (std::size_t i = 0; i < metadata.shards_metadata.size(); ++i) {
    ShardMetadata shard = metadata.shards_metadata[i];
    if (shard.placement.has_value()) shard.placement->set_device(at::Device(shard.placement->device().type()));
    facts.push_back(c10::str("shards_metadata[", i, "]=", shard));
  }
  return facts;
}

std::size_t owner_in(const ProcessGroup& group, const ShardMetadata& shard) {
  const int owner = group.group_rank_of(resolve_placement(group, shard.placement).first);
  SHARD_CHECK(owner >= 0, "No member of the group has ", shard);
  return static_cast<std::size_t>(owner);
}

ShardedTensorImpl& impl_of(const ShardedTensorBase& tensor) {
  SHARD_CHECK(tensor.defined(), "this handle refers to no ShardedTensor");
  auto& impl = static_cast<ShardedTensorImpl&>(*tensor.as_tensor().unsafeGetTensorImpl());
  impl.apply_requires_grad();
  return impl;
}

ShardedTensorImpl& ShardedTensorBase::impl() const { return impl_of(*this); }

ShardedTensorBase ShardedTensorBase::init_from_local_shards_and_global_metadata(std::vector<Shard> local_shards,
                                                                                const ShardedTensorMetadata& metadata,
                                                                                ShardingSpecPtr spec) {
  ImplPtr impl = make_anew(metadata, std::move(spec));
  check_shards(metadata);
  impl->local_shards = std::move(local_shards);
  return ShardedTensorBase(at::Tensor(std::move(impl)));
}

const ShardedTensorMetadata& ShardedTensorBase::metadata() const { return impl().metadata; }
const std::vector<Shard>& ShardedTensorBase::local_shards() const { return impl().local_shards; }
const ShardingSpecPtr& ShardedTensorBase::sharding_spec() const { return impl().spec; }

void ShardedTensorBase::set_sharding_spec(ShardingSpecPtr spec) {
  SHARD_CHECK_VALUE(spec, "Expecting ShardingSpec but got: None");
  const ShardedTensorMetadata& own = metadata();
  SHARD_CHECK_VALUE(with_elements(spec->build_metadata(own.size, own.tensor_properties)) == with_elements(own),
                    "cannot set the sharding spec: the tensor's shards are not those of ", spec->str());
  impl().spec = std::move(spec);
}

at::IntArrayRef ShardedTensorBase::sizes() const { return impl().sizes(); }

std::int64_t ShardedTensorBase::size(std::int64_t dim) const {
  return sizes()[static_cast<std::size_t>(wrapped_dim(dim, this->dim(), /*wrap_scalar=*/false))];
}

std::int64_t ShardedTensorBase::numel() const { return impl().numel(); }
at::ScalarType ShardedTensorBase::dtype() const { return impl().metadata.tensor_properties.dtype; }
at::Layout ShardedTensorBase::layout() const { return impl().metadata.tensor_properties.layout; }
bool ShardedTensorBase::requires_grad() const { return impl().requires_grad(); }
bool ShardedTensorBase::is_floating_point() const { return at::isFloatingType(dtype()); }
bool ShardedTensorBase::is_pinned() const { return impl().metadata.tensor_properties.pin_memory; }
bool ShardedTensorBase::is_leaf() const { return tensor_.is_leaf(); }
at::Tensor ShardedTensorBase::grad() const { return impl().own_gradient(); }
AutogradNodePtr ShardedTensorBase::grad_fn() const { return tensor_.grad_fn(); }

void ShardedTensorBase::set_requires_grad(bool requires_grad) {
  SHARD_CHECK(false, "torch function '__set__', with args: (", str(), ", ", requires_grad,
              ") and kwargs: {} not supported for ShardedTensor!");
}

std::string ShardedTensorBase::str() const { return c10::str("ShardedTensor(", metadata(), ")"); }

std::ostream& operator<<(std::ostream& out, const ShardedTensorBase& tensor) { return out << tensor.str(); }

ShardedTensor::ShardedTensor(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options)
    : ShardedTensorBase(allocate(std::move(spec), size, options, {})) {}

void fill_shards(const std::vector<Shard>& shards, const FillShard& fill) {
  const at::NoGradGuard no_grad;
  for (const Shard& shard : shards) fill(shard.tensor);
}

ShardedTensor make_filled(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options,
                          const FillShard& fill) {
  return ShardedTensor::of(allocate(std::move(spec), size, options, fill));
}

ShardedTensor ShardedTensor::of(const at::Tensor& tensor) {
  const auto* impl = tensor.defined() ? dynamic_cast<ShardedTensorImpl*>(tensor.unsafeGetTensorImpl()) : nullptr;
  return impl != nullptr ? ShardedTensor(tensor) : ShardedTensor();
}

ShardedTensor ShardedTensor::init_from_local_shards(std::vector<Shard> local_shards,
                                                    at::OptionalIntArrayRef global_size, ProcessGroupPtr group,
                                                    bool init_rrefs) {
  group = group_or_default(std::move(group));
  const auto own = [&]() -> std::optional<ShardedTensorMetadata> {
    SHARD_CHECK(global_size.has_value() || local_shards.size() == 1,
                "for metadata recalculation, each rank has one local shard, found ", local_shards.size());
    if (local_shards.empty()) return std::nullopt;
    const Sizes unknown(local_shards.front().metadata.shard_sizes.size());
    return metadata_of_local_shards(local_shards, global_size.value_or(unknown), world_rank(*group), *group);
  };
  // Ranks with and without a size would merge different metadata.
  const char* const given = global_size.has_value() ? "global_size is given=true" : "global_size is given=false";
  auto gathered = group->is_member() ? gather_metadata(group->group(), own, {given}) : std::vector{own()};
  if (!global_size.has_value()) {
    stack_rows(gathered);
    const auto rank = static_cast<std::size_t>(std::max(group->rank(), 0));
    local_shards.front().metadata = gathered[rank]->shards_metadata.front();
  }
  ImplPtr impl = make_anew(merge_metadata(gathered), nullptr);
  return ShardedTensor(finish(std::move(impl), std::move(local_shards), std::move(group), init_rrefs));
}

ShardedTensor ShardedTensor::init_from_local_shards_and_global_metadata(std::vector<Shard> local_shards,
                                                                        const ShardedTensorMetadata& metadata,
                                                                        ProcessGroupPtr group, bool init_rrefs,
                                                                        ShardingSpecPtr spec) {
  group = group_or_default(std::move(group));
  check_count(metadata, local_shards.size(), *group);
  ImplPtr impl = make_anew(metadata, std::move(spec));
  std::ranges::for_each(local_shards, LocalShardCheck{metadata.tensor_properties, world_rank(*group)});
  check_shards(metadata);
  return ShardedTensor(finish(std::move(impl), std::move(local_shards), std::move(group), init_rrefs));
}

ShardedTensor ShardedTensor::init_from_local_tensor(at::Tensor local_tensor, ShardingSpecPtr spec,
                                                    at::IntArrayRef global_size, ProcessGroupPtr group,
                                                    bool init_rrefs) {
  group = group_or_default(std::move(group));
  warn_of_deprecation(group);
  SHARD_CHECK_VALUE(local_tensor.is_contiguous(), "local_tensor is not a contiguous Tensor.");
  SHARD_CHECK_VALUE(spec, "Expecting ShardingSpec but got: None");
  const int rank = world_rank(*group);
  const ShardedTensorMetadata metadata = spec->build_metadata(global_size, TensorProperties::of(local_tensor));
  std::vector<Shard> local_shards;
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    if (resolve_placement(*group, shard.placement).first == rank) local_shards.emplace_back(local_tensor, shard);
  }
  return init_from_local_shards_and_global_metadata(std::move(local_shards), metadata, std::move(group), init_rrefs,
                                                    std::move(spec));
}

const ProcessGroupPtr& ShardedTensor::process_group() const { return impl().group; }
bool ShardedTensor::init_rrefs() const { return impl().init_rrefs; }

at::Tensor ShardedTensor::local_tensor() const {
  SHARD_CHECK_NOT_IMPLEMENTED(local_shards().size() == 1, "Only single local shard is supported.");
  return local_shards().front().tensor;
}

at::Device ShardedTensor::device() const {
  return local_shards().empty() ? impl().checked_group()->preferred_device() : local_shards().front().tensor.device();
}

std::pair<int, at::Device> resolve_placement(const ProcessGroup& group, const std::optional<RemoteDevice>& placement) {
  SHARD_CHECK_VALUE(placement.has_value(), "remote device is None");
  if (const auto& name = placement->worker_name()) return {rank_of_worker(*name), placement->device()};
  const int rank = placement->rank().value_or(-1);
  SHARD_CHECK_VALUE(rank < 0 || !group.is_member() || group.group_rank_of(rank) >= 0, "Global rank ", rank,
                    " does not exist in input process group: ", at::ArrayRef<int>(group.global_ranks()));
  return {rank, placement->device()};
}

at::Tensor create_tensor(at::IntArrayRef size, at::Device device, const TensorProperties& properties) {
  const auto options = at::TensorOptions(properties.dtype)
                           .device(device)
                           .layout(properties.layout)
                           .pinned_memory(properties.pin_memory)
                           .memory_format(properties.memory_format);
  return at::empty(size, options).set_requires_grad(properties.requires_grad);
}

}  // namespace shard
