#include "libshard/ranks/plugin_call.h"

#include <exception>

#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

template <class To, class From>
std::vector<To> plain_pieces(std::span<const From> pieces) {
  std::vector<To> result;
  result.reserve(pieces.size());
  for (const From& piece : pieces) result.push_back({piece.data(), piece.size()});
  return result;
}

template <class To, class From>
std::vector<To> spans_of(std::span<const From> pieces) {
  std::vector<To> result;
  result.reserve(pieces.size());
  for (const From& piece : pieces) result.emplace_back(piece.data, piece.count);
  return result;
}

}  // namespace

bool put_error(const ErrorSink* errors, const std::function<void()>& body) noexcept {
  try {
    body();
    return true;
  } catch (...) {
    try {
      WireWriter writer;
      writer.error(as_error(std::current_exception()));
      const Bytes bytes = writer.take();
      errors->put(errors->place, {bytes.data(), bytes.size()});
    } catch (...) {
      errors->put(errors->place, {});
    }
    return false;
  }
}

ByteSink sink_into(Bytes& bytes) {
  return {&bytes, [](void* place, PlainBytes found) {
            Bytes& taken = *static_cast<Bytes*>(place);
            try {
              taken.assign(found.data, found.data + found.count);
            } catch (...) {
              taken.clear();
            }
          }};
}

void throw_error(const std::function<bool(const ErrorSink* errors)>& function) {
  Bytes bytes;
  const ErrorSink errors = sink_into(bytes);
  if (function(&errors)) return;
  if (bytes.empty()) throw Error(ErrorCode::kResource, "out of memory").because("in a call of a plug-in");
  throw WireReader(bytes).error();
}

std::vector<PlainBytes> to_plain(std::span<const std::span<const std::byte>> pieces) {
  return plain_pieces<PlainBytes>(pieces);
}
std::vector<PlainRoom> to_plain(std::span<const std::span<std::byte>> pieces) {
  return plain_pieces<PlainRoom>(pieces);
}
std::vector<std::span<const std::byte>> from_plain(std::span<const PlainBytes> pieces) {
  return spans_of<std::span<const std::byte>>(pieces);
}
std::vector<std::span<std::byte>> from_plain(std::span<const PlainRoom> pieces) {
  return spans_of<std::span<std::byte>>(pieces);
}

}  // namespace shard
