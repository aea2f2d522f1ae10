// A plug-in's side of plain_device.h: a Device behind functions.
#include "libshard/device/plain_device.h"

namespace shard {

namespace {

Device& device_at(void* address) { return *static_cast<Device*>(address); }
DeviceStream& stream_at(void* address) { return *static_cast<DeviceStream*>(address); }
DeviceEvent& event_at(void* address) { return *static_cast<DeviceEvent*>(address); }

struct ServedLink {
  std::unique_ptr<Group> group;
  std::unique_ptr<DeviceLink> link;
};

bool serve_memory(void* device, std::int64_t* free_bytes, std::int64_t* total_bytes, const ErrorSink* errors) {
  return put_error(errors, [&] {
    const DeviceMemory memory = device_at(device).memory();
    *free_bytes = memory.free_bytes;
    *total_bytes = memory.total_bytes;
  });
}

bool serve_allocate(void* device, std::int64_t bytes, bool is_pinned, PlainBuffer* made, const ErrorSink* errors) {
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

bool serve_connect(void* device, PlainGroup group, std::int64_t milliseconds, void** made, const ErrorSink* errors) {
  return put_error(errors, [&] {
    auto served = std::make_unique<ServedLink>();
    served->group = from_plain(group);
    served->link = device_at(device).connect(*served->group, std::chrono::milliseconds(milliseconds));
    *made = served.release();
  });
}

bool serve_synchronize_event(void* event, const ErrorSink* errors) {
  return put_error(errors, [&] { event_at(event).synchronize(); });
}

bool serve_copy(void* stream, PlainCopy how, std::byte* to, const std::byte* from, std::int64_t bytes,
                const ErrorSink* errors) {
  return put_error(errors, [&] {
    switch (how) {
      case PlainCopy::kIn:
        return stream_at(stream).copy_in(to, from, bytes);
      case PlainCopy::kOut:
        return stream_at(stream).copy_out(to, from, bytes);
      case PlainCopy::kInside:
        return stream_at(stream).copy(to, from, bytes);
    }
  });
}

bool serve_strided_copy(void* stream, PlainBox box, const std::byte* from, std::byte* to, const ErrorSink* errors) {
  return put_error(errors, [&] {
    stream_at(stream).strided_copy({box.sizes, box.dimensions}, from, {box.from_strides, box.dimensions}, to,
                                   {box.to_strides, box.dimensions}, box.element_bytes);
  });
}

bool serve_cast(void* stream, int from, PlainBytes in, int to, PlainRoom out, std::int64_t* overflows,
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

bool serve_exchange(void* link, const PlainBytes* to, const PlainRoom* from, std::size_t ranks,
                    const ErrorSink* errors) {
  return put_error(errors, [&] {
    static_cast<ServedLink*>(link)->link->exchange(from_plain(std::span(to, ranks)),
                                                   from_plain(std::span(from, ranks)));
  });
}

template <class Served>
void serve_destroy(void* address) {
  delete static_cast<Served*>(address);
}

constexpr DeviceFunctions kServed{serve_memory,
                                  serve_allocate,
                                  serve_make_stream,
                                  serve_make_event,
                                  serve_connect,
                                  serve_synchronize_event,
                                  serve_copy,
                                  serve_strided_copy,
                                  serve_cast,
                                  serve_record,
                                  serve_wait,
                                  serve_synchronize_stream,
                                  serve_exchange,
                                  serve_destroy<DeviceBuffer>,
                                  serve_destroy<DeviceEvent>,
                                  serve_destroy<DeviceStream>,
                                  serve_destroy<ServedLink>,
                                  serve_destroy<Device>};

}  // namespace

PlainDevice to_plain(std::unique_ptr<Device> device) { return {device.release(), &kServed}; }

}  // namespace shard
