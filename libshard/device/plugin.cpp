#include "libshard/device/plugin.h"

#include <limits>
#include <utility>

#include "libshard/ranks/wire.h"

namespace shard {

namespace {

// The providing side: functions with a C interface over objects of this library. A plug-in and the program may be built
// with different compilers or standard libraries, so that only plain data and function pointers cross between them.
Device& device_at(void* address) { return *static_cast<Device*>(address); }

DeviceStream& stream_at(void* address) { return *static_cast<DeviceStream*>(address); }

DeviceEvent& event_at(void* address) { return *static_cast<DeviceEvent*>(address); }

/// A link uses its group for as long as it lives.
struct ServedLink {
  std::unique_ptr<Group> group;
  std::unique_ptr<DeviceLink> link;
};

bool serve_free_bytes(void* device, std::int64_t* bytes, const ErrorSink* errors) {
  return put_error(errors, [&] { *bytes = device_at(device).free_bytes(); });
}

bool serve_allocate(void* device, std::int64_t bytes, bool is_pinned, CBuffer* made, const ErrorSink* errors) {
  return put_error(errors, [&] {
    Device& owner = device_at(device);
    std::unique_ptr<DeviceBuffer> buffer = is_pinned ? owner.allocate_pinned(bytes) : owner.allocate(bytes);
    *made = {buffer.get(), buffer->data(), buffer->size()};
    static_cast<void>(buffer.release());
  });
}

bool serve_make_stream(void* device, void** made, const ErrorSink* errors) {
  return put_error(errors, [&] { *made = device_at(device).make_stream().release(); });
}

bool serve_make_event(void* device, void** made, const ErrorSink* errors) {
  return put_error(errors, [&] { *made = device_at(device).make_event().release(); });
}

bool serve_connect(void* device, CGroup group, std::int64_t milliseconds, void** made, const ErrorSink* errors) {
  return put_error(errors, [&] {
    auto served = std::make_unique<ServedLink>();
    served->group = from_c(group);
    served->link = device_at(device).connect(*served->group, std::chrono::milliseconds(milliseconds));
    *made = served.release();
  });
}

bool serve_synchronize_event(void* event, const ErrorSink* errors) {
  return put_error(errors, [&] { event_at(event).synchronize(); });
}

bool serve_copy_in(void* stream, std::byte* to, const std::byte* from, std::int64_t bytes, const ErrorSink* errors) {
  return put_error(errors, [&] { stream_at(stream).copy_in(to, from, bytes); });
}

bool serve_copy_out(void* stream, std::byte* to, const std::byte* from, std::int64_t bytes, const ErrorSink* errors) {
  return put_error(errors, [&] { stream_at(stream).copy_out(to, from, bytes); });
}

bool serve_strided_copy(void* stream, CBox box, const std::byte* from, std::byte* to, const ErrorSink* errors) {
  return put_error(errors, [&] {
    stream_at(stream).strided_copy({box.sizes, box.dimensions}, from, {box.from_strides, box.dimensions}, to,
                                   {box.to_strides, box.dimensions}, box.element_bytes);
  });
}

bool serve_cast(void* stream, int from, ConstBytes in, int to, MutableBytes out, std::int64_t* overflows,
                const ErrorSink* errors) {
  return put_error(errors, [&] {
    stream_at(stream).cast(static_cast<DType>(from), {in.data, in.count}, static_cast<DType>(to), {out.data, out.count},
                           overflows);
  });
}

bool serve_record(void* stream, void* event, const ErrorSink* errors) {
  return put_error(errors, [&] { stream_at(stream).record(event_at(event)); });
}

bool serve_wait(void* stream, void* event, const ErrorSink* errors) {
  return put_error(errors, [&] { stream_at(stream).wait(event_at(event)); });
}

bool serve_synchronize_stream(void* stream, const ErrorSink* errors) {
  return put_error(errors, [&] { stream_at(stream).synchronize(); });
}

bool serve_exchange(void* link, const ConstBytes* to, const MutableBytes* from, std::size_t ranks,
                    const ErrorSink* errors) {
  return put_error(errors, [&] {
    static_cast<ServedLink*>(link)->link->exchange(from_c(std::span(to, ranks)), from_c(std::span(from, ranks)));
  });
}

constexpr DeviceFunctions kServed{.free_bytes = serve_free_bytes,
                                  .allocate = serve_allocate,
                                  .make_stream = serve_make_stream,
                                  .make_event = serve_make_event,
                                  .connect = serve_connect,
                                  .synchronize_event = serve_synchronize_event,
                                  .copy_in = serve_copy_in,
                                  .copy_out = serve_copy_out,
                                  .strided_copy = serve_strided_copy,
                                  .cast = serve_cast,
                                  .record = serve_record,
                                  .wait = serve_wait,
                                  .synchronize_stream = serve_synchronize_stream,
                                  .exchange = serve_exchange,
                                  .destroy_buffer = serve_destroy<DeviceBuffer>,
                                  .destroy_event = serve_destroy<DeviceEvent>,
                                  .destroy_stream = serve_destroy<DeviceStream>,
                                  .destroy_link = serve_destroy<ServedLink>,
                                  .destroy_device = serve_destroy<Device>};

// The using side: objects that forward every call to the functions of the other side. Errors come back as plain data,
// and `call` throws them.
class ImportedBuffer final : public DeviceBuffer {
 public:
  ImportedBuffer(const DeviceFunctions& functions, const CBuffer& plain)
      : DeviceBuffer(plain.data, plain.size), buffer_(plain.buffer, functions.destroy_buffer) {}

 private:
  const ImportedObject buffer_;
};

class ImportedEvent final : public DeviceEvent {
 public:
  ImportedEvent(const DeviceFunctions& functions, void* event)
      : functions_(functions), event_(event, functions.destroy_event) {}
  void synchronize() override { call(functions_.synchronize_event, event_.get()); }
  void* get() const { return event_.get(); }

 private:
  const DeviceFunctions& functions_;
  const ImportedObject event_;
};

class ImportedStream final : public DeviceStream {
 public:
  ImportedStream(const DeviceFunctions& functions, void* stream)
      : functions_(functions), stream_(stream, functions.destroy_stream) {}

  void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    call(functions_.copy_in, stream_.get(), to, from, bytes);
  }
  void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    call(functions_.copy_out, stream_.get(), to, from, bytes);
  }
  void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                    std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                    std::size_t element_bytes) override {
    const CBox box{sizes.data(), from_strides.data(), to_strides.data(), sizes.size(), element_bytes};
    call(functions_.strided_copy, stream_.get(), box, from, to);
  }
  void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
            std::int64_t* overflows) override {
    call(functions_.cast, stream_.get(), static_cast<int>(from), ConstBytes{in.data(), in.size()}, static_cast<int>(to),
         MutableBytes{out.data(), out.size()}, overflows);
  }
  void record(DeviceEvent& event) override {
    call(functions_.record, stream_.get(), dynamic_cast<ImportedEvent&>(event).get());
  }
  void wait(DeviceEvent& event) override {
    call(functions_.wait, stream_.get(), dynamic_cast<ImportedEvent&>(event).get());
  }
  void synchronize() override { call(functions_.synchronize_stream, stream_.get()); }

 private:
  const DeviceFunctions& functions_;
  const ImportedObject stream_;
};

class ImportedLink final : public DeviceLink {
 public:
  ImportedLink(const DeviceFunctions& functions, void* link)
      : functions_(functions), link_(link, functions.destroy_link) {}

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    call(functions_.exchange, link_.get(), to_c(to).data(), to_c(from).data(), to.size());
  }

 private:
  const DeviceFunctions& functions_;
  const ImportedObject link_;
};

class ImportedDevice final : public Device {
 public:
  ImportedDevice(const CDevice& plain, DeviceInfo info)
      : functions_(*plain.functions), device_(plain.device, plain.functions->destroy_device), info_(std::move(info)) {}

  const DeviceInfo& info() const override { return info_; }
  std::int64_t free_bytes() const override {
    std::int64_t bytes = 0;
    call(functions_.free_bytes, device_.get(), &bytes);
    return bytes;
  }
  std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes) override { return allocate(bytes, false); }
  std::unique_ptr<DeviceBuffer> allocate_pinned(std::int64_t bytes) override { return allocate(bytes, true); }
  std::unique_ptr<DeviceStream> make_stream() override {
    void* stream = nullptr;
    call(functions_.make_stream, device_.get(), &stream);
    return std::make_unique<ImportedStream>(functions_, stream);
  }
  std::unique_ptr<DeviceEvent> make_event() override {
    void* event = nullptr;
    call(functions_.make_event, device_.get(), &event);
    return std::make_unique<ImportedEvent>(functions_, event);
  }
  std::unique_ptr<DeviceLink> connect(Group& group, std::chrono::milliseconds timeout) override {
    void* link = nullptr;
    call(functions_.connect, device_.get(), to_c(group), timeout.count(), &link);
    return std::make_unique<ImportedLink>(functions_, link);
  }

 private:
  std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes, bool is_pinned) {
    CBuffer made{};
    call(functions_.allocate, device_.get(), bytes, is_pinned, &made);
    return std::make_unique<ImportedBuffer>(functions_, made);
  }

  const DeviceFunctions& functions_;
  const ImportedObject device_;
  const DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> from_c(const CDevice& plain, const DeviceInfo& info) {
  return std::make_unique<ImportedDevice>(plain, info);
}

CDevice to_c(std::unique_ptr<Device> device) { return {device.release(), &kServed}; }

template <class Wire>
static void pass_number(Wire& wire, Passed<Wire, int>& number) {
  wire.pass_below(number, std::int64_t{std::numeric_limits<int>::max()} + 1);
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, DeviceSystem>& system) {
  pass_number(wire, system.driver);
  pass_number(wire, system.runtime);
  wire.pass(system.nccl, system.problem);
  wire.list(system.devices, [&](auto& info) {
    for (auto* const number : {&info.number, &info.major, &info.minor}) pass_number(wire, *number);
    wire.pass(info.memory_bytes, info.name);
  });
}

Bytes to_bytes(const DeviceSystem& system) { return to_message(system); }

DeviceSystem to_device_system(std::span<const std::byte> bytes) { return from_message<DeviceSystem>(bytes); }

bool put_devices(const ByteSink* system, const ErrorSink* errors,
                 const std::function<DeviceSystem()>& describe) noexcept {
  return put_error(errors, [&] {
    const Bytes bytes = to_bytes(describe());
    system->put(system->place, {bytes.data(), bytes.size()});
  });
}

bool open_c_device(CDevice* made, const ErrorSink* errors,
                   const std::function<std::unique_ptr<Device>()>& open) noexcept {
  return put_error(errors, [&] { *made = to_c(open()); });
}

}  // namespace shard
