#include "libshard/exec/received_sums.h"

#include "libshard/core/digest.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"

namespace shard {

namespace {

constexpr std::int64_t kLeastRun = 256;  ///< Bytes, on average: a record is then at most an eighth of what it is of.

}  // namespace

bool sum_received(const Catalog& source, const Piece& piece, const ReceivedBox& received, std::int64_t element_bytes,
                  std::vector<CrcRun>& runs) {
  if (!source.storages[piece.storage].crc32 || !is_one_run(piece.sizes.span(), piece.strides.span())) return true;
  if (received.is_on_device) return false;
  const Box box(received.offsets, received.sizes);
  Numbers packed;
  const BufferBox whole = row_major_box(box, received.data, packed);
  const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offset.data(), piece.strides.span());
  const std::int64_t most = box.numel() * element_bytes / kLeastRun + 1;
  const std::size_t before = runs.size();
  bool is_few = true;
  walk_runs(whole.sizes, piece.strides.span(), whole.strides,
            [&](std::int64_t in_storage, std::int64_t in_memory, std::int64_t elements) {
              is_few = is_few && std::ssize(runs) - static_cast<std::int64_t>(before) < most;
              if (!is_few) return;
              const std::span<const std::byte> bytes(whole.data + in_memory * element_bytes,
                                                     static_cast<std::size_t>(elements * element_bytes));
              runs.push_back({(first + in_storage) * element_bytes, std::ssize(bytes), piece.storage, crc32(bytes)});
            });
  if (!is_few) runs.resize(before);
  return is_few;
}

}  // namespace shard
