#include "libshard/job/box_request.h"

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::kPeer, "a rank requested data that the source does not have"); }

Dims read_dims(WireReader& from, Arena& arena, int count, std::int64_t least) {
  std::array<std::int64_t, kMaxDims> numbers;
  for (int d = 0; d < count; ++d) {
    numbers[static_cast<std::size_t>(d)] = from.number();
    if (numbers[static_cast<std::size_t>(d)] < least) refuse();
  }
  return arena.dims(std::span(numbers).first(static_cast<std::size_t>(count)));
}

/// Every number of the request was at least 0 when it was read.
void check(const BoxRequest& request, const Catalog& source, std::int64_t limit_bytes) {
  const Piece& piece = request.piece;
  std::int64_t last = piece.first;
  for (int d = 0; d < piece.sizes.size(); ++d) {
    if (request.offsets[d] > piece.sizes[d] - request.sizes[d]) refuse();
    last = checked_add(last, checked_mul(piece.sizes[d] - 1, piece.strides[d]));
  }
  const Storage& storage = source.storages[piece.storage];
  // Small neighbours in a file are one piece, which begins in the first one's storage.
  const std::int64_t bytes = storage.plain ? source.files[storage.file].bytes - storage.offset : storage.bytes;
  if (storage.offset < 0 || checked_mul(checked_add(last, 1), request.element_bytes) > bytes) refuse();
  if (request.bytes > limit_bytes) refuse();
}

}  // namespace

void write_request(WireWriter& to, const Piece& piece, const Box& box, std::int64_t element_bytes) {
  to.number(piece.storage);
  to.number(piece.first);
  to.number(element_bytes);
  to.number(box.dims);
  for (const std::int64_t size : piece.sizes) to.number(size);
  for (const std::int64_t stride : piece.strides) to.number(stride);
  for (int d = 0; d < box.dims; ++d) to.number(box.offset[static_cast<std::size_t>(d)] - piece.offsets[d]);
  for (int d = 0; d < box.dims; ++d) to.number(box.size[static_cast<std::size_t>(d)]);
}

RequestList read_requests(std::span<const std::byte> message, const Catalog& source, std::int64_t limit_bytes) {
  constexpr std::int64_t kLargestElement = 64;
  RequestList list;
  try {
    for (WireReader from(message); !from.at_end();) {
      BoxRequest& request = list.boxes.emplace_back();
      request.piece.storage = static_cast<std::uint32_t>(from.number_below(std::ssize(source.storages)));
      request.piece.first = from.number();
      request.element_bytes = from.number_below(kLargestElement + 1);
      if (request.piece.first < 0 || request.element_bytes < 1) refuse();
      const int dims = static_cast<int>(from.number_below(kMaxDims + 1));
      request.piece.offsets = list.arena->zeros(dims);
      request.piece.sizes = read_dims(from, *list.arena, dims, 1);
      request.piece.strides = read_dims(from, *list.arena, dims, 0);
      request.offsets = read_dims(from, *list.arena, dims, 0);
      request.sizes = read_dims(from, *list.arena, dims, 1);
      request.bytes = checked_mul(checked_numel(request.sizes), request.element_bytes);
      check(request, source, limit_bytes);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeer) throw;
    refuse();  // Numbers too large to count with.
  }
  return list;
}

}  // namespace shard
