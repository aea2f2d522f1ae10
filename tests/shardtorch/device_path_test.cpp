// Elements stay on the group's device: shown without a GPU by a fake device, whose memory is the host's, but which
// counts every byte that is copied between it and the CPU.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "shardtorch/c10d/gloo.h"
#include "shardtorch/checkpoint/async_save.h"
#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "tests/support/temp_folder.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

const at::Device kDevice(at::kPrivateUse1, 0);
std::atomic<std::int64_t> host_bytes = 0;    ///< Copied between the device and the CPU.
std::atomic<std::int64_t> largest_copy = 0;  ///< The sizes of those, in bytes.

void count_host_copy(std::int64_t bytes) {
  host_bytes += bytes;
  std::int64_t largest = largest_copy;
  while (largest < bytes && !largest_copy.compare_exchange_weak(largest, bytes)) {
  }
}

// --- The device -----------------------------------------------------------------------------------------------------

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(bytes > 0 ? bytes : 1);
    return {memory, memory, &std::free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

DeviceMemory& memory() {
  static DeviceMemory instance;
  return instance;
}

/// The same memory as a tensor on the CPU: how this device computes.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory(), kKeys, dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory(), kKeys, dtype.value_or(at::kFloat));
}
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.device() != from.device()) count_host_copy(static_cast<std::int64_t>(to.nbytes()));
  as_cpu(to).copy_(as_cpu(from));
  return to;
}
bool equal(const at::Tensor& a, const at::Tensor& b) { return at::equal(as_cpu(a), as_cpu(b)); }
at::Tensor& div_(at::Tensor& tensor, const at::Tensor& by) {
  as_cpu(tensor).div_(by);
  return tensor;
}

std::atomic<int> waits = 0;  ///< For the device's pending work.

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  void synchronizeDevice(c10::DeviceIndex) const override { ++waits; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("equal", &equal);
  library.impl("div_.Tensor", &div_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
}

// --- Its backend ----------------------------------------------------------------------------------------------------

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class AllOf final : public c10d::Work {
 public:
  explicit AllOf(std::vector<WorkPtr> works) : works_(std::move(works)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    for (const WorkPtr& work : works_) work->wait(timeout);
    return true;
  }

 private:
  std::vector<WorkPtr> works_;
};

/// Gloo for tensors of only that device, as NCCL is for those of GPUs: messages between ranks start when their group
/// ends, which has no work if there are none.
class DeviceBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit DeviceBackend(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}
  const std::string getBackendName() const override { return "device-of-the-test"; }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors own = checked(tensors);
    return gloo_->broadcast(own, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors own = checked(tensors);
    return gloo_->allreduce(own, options);
  }
  WorkPtr _allgather_base(at::Tensor& all, at::Tensor& own, const c10d::AllgatherOptions& options) override {
    at::Tensor out = checked(all), in = checked(own);
    return gloo_->_allgather_base(out, in, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& own, at::Tensor& whole, const c10d::ReduceScatterOptions& options) override {
    at::Tensor out = checked(own), in = checked(whole);
    return gloo_->_reduce_scatter_base(out, in, options);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    messages_.push_back([this, own = checked(tensors), to, tag]() mutable { return gloo_->send(own, to, tag); });
    return nullptr;
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    messages_.push_back([this, own = checked(tensors), from, tag]() mutable { return gloo_->recv(own, from, tag); });
    return nullptr;
  }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { messages_.clear(); }
  WorkPtr endCoalescing() override {
    std::vector<WorkPtr> works;
    for (auto& message : messages_) works.push_back(message());
    if (works.empty()) return nullptr;
    return c10::make_intrusive<AllOf>(std::move(works));
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }
  void abort() override { gloo_->abort(); }

 private:
  static at::Tensor checked(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.device() == kDevice, "a tensor on ", tensor.device());
    return as_cpu(tensor);
  }
  static Tensors checked(const Tensors& tensors) {
    Tensors own;
    for (const at::Tensor& tensor : tensors) own.push_back(checked(tensor));
    return own;
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::vector<std::function<WorkPtr()>> messages_;
};

/// Runs `body` as both ranks, on threads, each with its group from `make_group`.
void on_threads(const std::function<ProcessGroupPtr(const c10::intrusive_ptr<c10d::Store>&, int rank)>& make_group,
                const std::function<void(const ProcessGroupPtr&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const ProcessGroupPtr group = make_group(store, rank);
        body(group);
        group->group().barrier();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      destroy_process_group();
    });
  }
}

/// Over that backend, as ranks whose GPUs are connected.
void on_ranks(const std::function<void(const ProcessGroupPtr&)>& body) {
  on_threads(
      [](const auto& store, int rank) {
        auto options = c10d::ProcessGroupGloo::Options::create(20s);
        options->devices.push_back(gloo_device(true));
        const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
        return wrap_process_group(c10::make_intrusive<DeviceBackend>(gloo), "device", kDevice);
      },
      body);
}

/// In a world of Gloo, as ranks whose GPUs are not.
void on_ranks_of_gloo(const std::function<void(const ProcessGroupPtr&)>& body) {
  on_threads([](const auto& store,
                int rank) { return init_thread_process_group(make_c10d_world("gloo", store, rank, 2, 20s)); },
             body);
}

constexpr std::int64_t kMostForAgreeing = 4096;  // Digests of arguments, a few bytes each, go through the host.

/// Host bytes of all ranks while they do `step`.
std::int64_t host_bytes_of(const ProcessGroup& group, const std::function<void()>& step) {
  group.group().barrier();
  if (group.rank() == 0) host_bytes = largest_copy = waits = 0;
  group.group().barrier();
  step();
  group.group().barrier();
  const std::int64_t bytes = host_bytes;
  group.group().barrier();
  return bytes;
}

at::Tensor counted() { return at::arange(64 * 64, at::kFloat).view({64, 64}); }

ShardingSpecPtr chunks(std::int64_t dim, bool is_turned = false) {
  const RemoteDevice first(0, kDevice), second(1, kDevice);
  return chunk_spec(dim, is_turned ? std::vector{second, first} : std::vector{first, second});
}

/// On the device, with the elements of `whole`.
ShardedTensor cut(const at::Tensor& whole, const ShardingSpecPtr& spec, const ProcessGroupPtr& group) {
  const ShardedTensor tensor(spec, whole.sizes(), {.process_group = group});
  for (const Shard& shard : tensor.local_shards()) {
    at::Tensor(shard.tensor).copy_(narrow_tensor(whole, shard.metadata));
  }
  return tensor;
}
ShardedTensor rows(const ProcessGroupPtr& group) { return cut(counted(), chunks(0), group); }

TEST(DevicePath, GatherReshardScatterAndEqualCopyNoElementsThroughTheHost) {
  on_ranks([](const ProcessGroupPtr& group) {
    ShardedTensor tensor = rows(group);
    const at::Tensor whole = counted().to(kDevice), out = at::empty({64, 64}, at::TensorOptions(kDevice));
    ShardedTensor scattered;
    bool is_equal = false;
    const std::int64_t bytes = host_bytes_of(*group, [&] {
      tensor.reshard(chunks(1, true));  // Another dimension,
      tensor.reshard(chunks(1));        // and other owners.
      scattered = shard_tensor(whole, chunks(1), 0, group);
      is_equal = equal(tensor, scattered);
      tensor.gather(1, group->rank() == 1 ? std::optional(out) : std::nullopt);
    });
    EXPECT_LT(bytes, kMostForAgreeing) << "the tensor has 16 KiB";
    EXPECT_EQ(group->wire_bytes().staged, 0);
    EXPECT_GT(group->wire_bytes().direct, 16 * 1024);
    EXPECT_TRUE(is_equal);
    if (group->rank() == 1) {
      EXPECT_TRUE(out.cpu().equal(counted()));
    }
    EXPECT_EQ(tensor.local_tensor().device(), kDevice);
    EXPECT_TRUE(tensor.local_tensor().cpu().equal(counted().narrow(1, 32 * group->rank(), 32)));
  });
}

TEST(DevicePath, ARankWithNothingToSendWaitsForNothing) {
  on_ranks([](const ProcessGroupPtr& group) {
    const ShardedTensor tensor = cut(counted(), chunk_spec(0, {RemoteDevice(0, kDevice)}), group);
    const at::Tensor out = at::empty({64, 64}, at::TensorOptions(kDevice));
    tensor.gather(0, group->rank() == 0 ? std::optional(out) : std::nullopt);
    EXPECT_TRUE(group->rank() == 1 || out.cpu().equal(counted()));
    EXPECT_EQ(group->wire_bytes().direct, 0);
  });
}

/// Chunks of both ranks on `device`, with the rows of `counted()`.
void expect_rows_on(const ShardedTensor& tensor, at::Device device, const ProcessGroupPtr& group) {
  const ChunkShardingSpec* const spec = as_chunk(*tensor.sharding_spec());
  ASSERT_NE(spec, nullptr);
  EXPECT_EQ(spec->dim(), 0);
  EXPECT_EQ(spec->placements(), (std::vector<RemoteDevice>{{0, device}, {1, device}}));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(tensor.metadata().shards_metadata.at(static_cast<std::size_t>(rank)),
              ShardMetadata({32 * rank, 0}, {32, 64}, RemoteDevice(rank, device)));
  }
  EXPECT_EQ(tensor.process_group(), group);
  EXPECT_EQ(tensor.device(), device);
  EXPECT_EQ(tensor.local_tensor().device(), device);
  EXPECT_TRUE(tensor.local_tensor().cpu().equal(counted().narrow(0, 32 * group->rank(), 32)));
}

TEST(DevicePath, ST039_UP02_TensorsMoveToTheCpuAndBackWithTheirSpecAndGroup) {
  on_ranks([](const ProcessGroupPtr& group) {
    const ShardedTensor tensor = rows(group), on_cpu = tensor.cpu();
    EXPECT_FALSE(on_cpu.is_same(tensor));
    expect_rows_on(on_cpu, at::kCPU, group);
    expect_rows_on(tensor, kDevice, group);
    const ShardedTensor back = on_cpu.to(kDevice);
    EXPECT_FALSE(back.is_same(on_cpu));
    expect_rows_on(back, kDevice, group);
    EXPECT_TRUE(back.to(kDevice).is_same(back));
    const ShardedTensor halves = tensor.to(at::kCPU, at::kHalf);
    EXPECT_EQ(halves.dtype(), at::kHalf);
    EXPECT_EQ(halves.device(), at::Device(at::kCPU));
    const ProcessGroupPtr other =
        std::make_shared<ProcessGroup>(std::shared_ptr<Group>(group, &group->group()), std::vector<int>{0, 1}, "other");
    expect_rows_on(tensor.cpu(at::MemoryFormat::Preserve, other), at::kCPU, other);
    expect_rows_on(tensor.to({.device = at::kCPU, .process_group = other}), at::kCPU, other);
  });
}

TEST(DevicePath, UP02_CpuCreatesANewTensorIfOnlySomeShardsAreThere) {
  on_ranks([](const ProcessGroupPtr& group) {
    const ShardingSpecPtr mixed = chunk_spec(0, {RemoteDevice(0, at::kCPU), RemoteDevice(1, kDevice)});
    const ShardedTensor tensor(mixed, {64, 64}, {.process_group = group});
    at::Tensor(tensor.local_tensor()).copy_(counted().narrow(0, 32 * group->rank(), 32));
    const ShardedTensor on_cpu = tensor.cpu();
    EXPECT_FALSE(on_cpu.is_same(tensor)) << "on rank 0 too, which had nothing to move";
    expect_rows_on(on_cpu, at::kCPU, group);
  });
}

TEST(DevicePath, ST040_ARankWithoutShardsHasTheDeviceOfItsGroup) {
  on_ranks([](const ProcessGroupPtr& group) {
    const ShardedTensor tensor(chunk_spec(0, {RemoteDevice(1, at::kCPU)}), {4}, {.process_group = group});
    EXPECT_EQ(tensor.device(), group->rank() == 1 ? at::Device(at::kCPU) : kDevice);
  });
}

TEST(DevicePath, CollectivesTakeTensorsOfTheDeviceAsTheyLie) {
  on_ranks([](const ProcessGroupPtr& group) {
    const at::Tensor sum = counted().to(kDevice), first = counted().add(group->rank()).to(kDevice),
                     mean = counted().to(kDevice);
    at::Tensor all, part;
    const std::int64_t bytes = host_bytes_of(*group, [&] {
      all_reduce(sum, ReduceOp::kSum, group);
      all_reduce(mean, ReduceOp::kMean, group);
      broadcast(first, 1, group);
      all = all_gather(mean, 1, group);
      part = reduce_scatter(mean, ReduceOp::kSum, 0, group);
    });
    EXPECT_EQ(bytes, 0);
    EXPECT_EQ(group->wire_bytes().staged, 0);
    EXPECT_TRUE(sum.cpu().equal(counted() * 2));
    EXPECT_TRUE(first.cpu().equal(counted() + 1));
    EXPECT_TRUE(all.cpu().equal(at::cat({counted(), counted()}, 1)));
    EXPECT_TRUE(part.cpu().equal(counted().narrow(0, 32 * group->rank(), 32) * 2));
  });
}

TEST(DevicePath, DataOnOtherDevicesIsStagedAndCounted) {
  on_ranks([](const ProcessGroupPtr& group) {
    const at::Tensor on_cpu = counted();
    const std::int64_t bytes = host_bytes_of(*group, [&] { all_reduce(on_cpu, ReduceOp::kSum, group); });
    EXPECT_EQ(bytes, 2 * 2 * 16 * 1024) << "there and back, on both ranks";
    EXPECT_EQ(group->wire_bytes().staged, 16 * 1024);
    EXPECT_EQ(group->wire_bytes().direct, 0);
    EXPECT_TRUE(on_cpu.equal(counted() * 2));
  });
}

// --- Checkpoints ----------------------------------------------------------------------------------------------------

constexpr std::int64_t kSide = 2048, kWholeBytes = kSide * kSide * 4;  // Each rank has two stages of it.

at::Tensor large() { return at::arange(kSide * kSide, at::kFloat).view({kSide, kSide}); }

void expect_large(const ShardedTensor& tensor) {
  const Shard& own = tensor.local_shards().at(0);
  EXPECT_EQ(own.tensor.device(), kDevice);
  EXPECT_TRUE(own.tensor.cpu().equal(narrow_tensor(large(), own.metadata)));
}

StateDict state_of(const ShardedTensor& sharded, const at::Tensor& plain) {
  StateDict state;
  state.insert("sharded", sharded.as_tensor());
  state.insert("plain", plain);
  return state;
}

/// A state to fill, under a different sharding: the checkpoint's elements arrive in parts of a stage at most.
void expect_loaded(const std::string& path, const ProcessGroupPtr& group) {
  const ShardedTensor columns = cut(at::zeros({kSide, kSide}), chunks(1), group);
  const at::Tensor plain = at::zeros({64, 64}).to(kDevice);
  StateDict state = state_of(columns, plain);
  const std::int64_t bytes = host_bytes_of(*group, [&] { checkpoint::load(state, path, group); });
  EXPECT_EQ(bytes, kWholeBytes + 2 * 16 * 1024) << "the plain tensor on both ranks";
  EXPECT_LE(largest_copy, checkpoint::TensorMemory::kStageBytes);
  EXPECT_EQ(waits, 4) << "each rank, before and after";
  group->group().barrier();
  expect_large(columns);
  EXPECT_TRUE(plain.cpu().equal(counted()));
}

TEST(DevicePath, CheckpointsCopyEveryElementOnceInPartsOfAStage) {
  const TempFolder folder;
  on_ranks_of_gloo([&](const ProcessGroupPtr& group) {
    const StateDict state = state_of(cut(large(), chunks(0), group), counted().to(kDevice));
    const std::int64_t bytes =
        host_bytes_of(*group, [&] { checkpoint::save(state, folder / "saved", group, {.sync = false}); });
    EXPECT_EQ(bytes, kWholeBytes + 16 * 1024) << "the plain tensor from one rank";
    EXPECT_LE(largest_copy, checkpoint::TensorMemory::kStageBytes) << "never a tensor as a whole";
    EXPECT_GE(waits, 2) << "each rank for what the device still computes";
    group->group().barrier();
    expect_loaded(folder / "saved", group);
  });
}

TEST(DevicePath, AsynchronousSavesAreDoneWithTheDeviceWhenTheyReturn) {
  const TempFolder folder;
  on_ranks_of_gloo([&](const ProcessGroupPtr& group) {
    const ShardedTensor sharded = cut(large(), chunks(0), group);
    const at::Tensor plain = counted().to(kDevice);
    std::optional<checkpoint::AsyncSave> save;
    const std::int64_t staged = host_bytes_of(*group, [&] {
      save = checkpoint::async_save(state_of(sharded, plain), folder / "saved", group, {.sync = false});
    });
    EXPECT_EQ(staged, kWholeBytes + 16 * 1024);
    at::Tensor(sharded.local_tensor()).copy_(at::zeros({kSide / 2, kSide}));
    at::Tensor(plain).copy_(at::zeros({64, 64}));
    EXPECT_EQ(host_bytes_of(*group, [&] { save->wait(); }), 0);
    expect_loaded(folder / "saved", group);
  });
}

}  // namespace
}  // namespace shard::test
