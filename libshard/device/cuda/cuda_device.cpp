#include "libshard/device/cuda/cuda_device.h"

#include <fmt/format.h>

#include "libshard/core/error.h"
#include "libshard/device/cuda/launches.h"

namespace shard::cuda {

namespace {

class DeviceMemoryBuffer final : public DeviceBuffer {
 public:
  DeviceMemoryBuffer(std::byte* data, std::int64_t bytes) : DeviceBuffer(data, bytes) {}
  ~DeviceMemoryBuffer() override { cudaFree(data()); }
};

class PinnedBuffer final : public DeviceBuffer {
 public:
  PinnedBuffer(std::byte* data, std::int64_t bytes) : DeviceBuffer(data, bytes) {}
  ~PinnedBuffer() override { cudaFreeHost(data()); }
};

class Event final : public DeviceEvent {
 public:
  explicit Event(const DeviceInfo& device) : device_(device) {
    use(device_);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), device_, "make an event");
  }
  ~Event() override { cudaEventDestroy(event_); }
  void synchronize() override {
    use(device_);
    check(cudaEventSynchronize(event_), device_, "finish the work");
  }
  cudaEvent_t get() const { return event_; }

 private:
  const DeviceInfo& device_;
  cudaEvent_t event_ = nullptr;
};

class WorkStream final : public DeviceStream {
 public:
  explicit WorkStream(const DeviceInfo& device) : device_(device), stream_(device) {}

  void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    move(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    move(to, from, bytes, cudaMemcpyDeviceToHost);
  }

  void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                    std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                    std::size_t element_bytes) override {
    use(device_);
    start_copy(kernels::copy_shape(sizes, from, from_strides, to, to_strides, element_bytes), from, to, stream_.get());
    check(cudaGetLastError(), device_, "start a copy");
  }
  void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
            std::int64_t* overflows) override {
    use(device_);
    const std::int64_t elements = static_cast<std::int64_t>(in.size()) / element_bytes(from);
    start_cast(kernels::cast_shape(from, to, elements), in.data(), out.data(), overflows, stream_.get());
    check(cudaGetLastError(), device_, "start a cast");
  }

  void record(DeviceEvent& event) override {
    use(device_);
    check(cudaEventRecord(dynamic_cast<Event&>(event).get(), stream_.get()), device_, "record an event");
  }
  void wait(DeviceEvent& event) override {
    use(device_);
    check(cudaStreamWaitEvent(stream_.get(), dynamic_cast<Event&>(event).get(), 0), device_, "wait for an event");
  }
  void synchronize() override {
    use(device_);
    check(cudaStreamSynchronize(stream_.get()), device_, "finish the work");
  }

 private:
  void move(std::byte* to, const std::byte* from, std::int64_t bytes, cudaMemcpyKind kind) {
    use(device_);
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream_.get()), device_, "copy memory");
  }

  const DeviceInfo& device_;
  Stream stream_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceInfo& info) : info_(info) {}

  const DeviceInfo& info() const override { return info_; }

  std::int64_t free_bytes() const override {
    use(info_);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), info_, "ask for free memory");
    return static_cast<std::int64_t>(free);
  }

  std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes) override {
    use(info_);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // Clears the error. Otherwise, the next call would report it again.
      throw out_of_device_memory(info_, bytes, free_bytes());
    }
    check(status, info_, "allocate memory");
    return std::make_unique<DeviceMemoryBuffer>(static_cast<std::byte*>(data), bytes);
  }

  std::unique_ptr<DeviceBuffer> allocate_pinned(std::int64_t bytes) override {
    use(info_);
    void* data = nullptr;
    check(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable), info_,
          "pin memory of the host");
    return std::make_unique<PinnedBuffer>(static_cast<std::byte*>(data), bytes);
  }

  std::unique_ptr<DeviceStream> make_stream() override { return std::make_unique<WorkStream>(info_); }
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<Event>(info_); }

  std::unique_ptr<DeviceLink> connect(Group& group, std::chrono::milliseconds timeout) override {
    return connect_by_nccl(info_, group, timeout);
  }

 private:
  const DeviceInfo info_;
};

}  // namespace

void check(cudaError_t status, const DeviceInfo& device, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kResource, fmt::format("cannot {} on device {} ({})", what, device.number, device.name))
      .because(cudaGetErrorString(status));
}

Stream::Stream(const DeviceInfo& device) {
  use(device);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), device, "make a stream");
}
Stream::~Stream() { cudaStreamDestroy(stream_); }

void use(const DeviceInfo& device) { check(cudaSetDevice(device.number), device, "work"); }

std::string list_devices(std::vector<DeviceInfo>& devices) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) return cudaGetErrorString(status);
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp properties{};
    const cudaError_t status = cudaGetDeviceProperties(&properties, number);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    devices.push_back({.number = number,
                       .name = properties.name,
                       .major = properties.major,
                       .minor = properties.minor,
                       .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem)});
  }
  return {};
}

std::unique_ptr<Device> open_device(const DeviceInfo& info) { return std::make_unique<CudaDevice>(info); }

}  // namespace shard::cuda
