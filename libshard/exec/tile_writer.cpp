#include "libshard/exec/tile_writer.h"

#include <algorithm>

#include "libshard/core/digest.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/runs.h"

namespace shard {

namespace {

constexpr std::int64_t kLongestWrite = 8 << 20;  // Longer runs are cut, so that a stop need not wait for long.

}  // namespace

TileWriter::TileWriter(const TileWork& work) : work_(work) {
  if (work.options.framing != nullptr) framed_.emplace(*work.options.framing, work.files);
}

void TileWriter::write(const Unit& unit, const Piece& piece, const BufferBox& box, DType held,
                       std::span<std::byte> staging) {
  const std::int64_t held_bytes = element_bytes(held), to_bytes = element_bytes(unit.to);
  const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offsets.data(), piece.strides.span());
  walk_runs(box.sizes, piece.strides.span(), box.strides,
            [&](std::int64_t in_file, std::int64_t in_buffer, std::int64_t elements) {
              const std::byte* data = box.data + in_buffer * held_bytes;
              const std::int64_t offset = (first + in_file) * to_bytes;
              if (held == unit.to) return put(piece.storage, offset, data, elements * held_bytes);
              put_cast(unit, piece.storage, offset, data, elements, staging);
            });
}

void TileWriter::end_tile() {
  if (framed_) work_.progress.write_calls += framed_->flush();
}

void TileWriter::put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                          std::int64_t elements, std::span<std::byte> staging) {
  const std::int64_t from_bytes = element_bytes(unit.from), to_bytes = element_bytes(unit.to);
  const std::int64_t most = static_cast<std::int64_t>(staging.size()) / to_bytes;
  for (std::int64_t done = 0; done < elements; done += most) {
    const std::int64_t count = std::min(most, elements - done);
    const std::span<std::byte> out = staging.first(static_cast<std::size_t>(count * to_bytes));
    const std::span in(data + done * from_bytes, static_cast<std::size_t>(count * from_bytes));
    work_.progress.cast_overflows += cast(unit.from, in, unit.to, out);
    put(storage, offset + done * to_bytes, out.data(), count * to_bytes);
  }
}

/// Writes bytes at an offset of a storage.
void TileWriter::put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes) {
  const Storage& written = work_.target.storages[storage];
  if (framed_ && framed_->takes(storage, bytes)) return put_framed(storage, {data, static_cast<std::size_t>(bytes)});
  for (std::int64_t done = 0; done < bytes; done += kLongestWrite) {
    check_stop(work_.options.stop);
    const std::span block(data + done, static_cast<std::size_t>(std::min(kLongestWrite, bytes - done)));
    work_.files[written.file]->write_at(written.offset + offset + done, block);
    work_.progress.write_calls.fetch_add(1, std::memory_order_relaxed);
    work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(block.size()), std::memory_order_relaxed);
    if (work_.checksums == nullptr) continue;
    work_.checksums->record(storage, offset + done, static_cast<std::int64_t>(block.size()), crc32(block));
  }
}

/// A whole storage: its frame is written with it.
void TileWriter::put_framed(std::uint32_t storage, std::span<const std::byte> bytes) {
  const std::uint32_t crc = crc32(bytes);
  work_.progress.write_calls += framed_->add(storage, bytes, crc);
  work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(bytes.size()), std::memory_order_relaxed);
  work_.checksums->record(storage, 0, static_cast<std::int64_t>(bytes.size()), crc);
}

}  // namespace shard
