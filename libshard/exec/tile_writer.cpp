#include "libshard/exec/tile_writer.h"

#include <algorithm>

#include "libshard/core/digest.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

constexpr std::int64_t kLongestWrite = 8 << 20;  // Longer runs are split, so that a stop is noticed soon.

}  // namespace

TileWriter::TileWriter(const TileWork& work) : work_(work) {
  if (work.options.framing != nullptr) framed_.emplace(*work.options.framing, work.files);
}

void count(TileRecord& record, const CrcRun& run) {
  record.crc = crc32_combine(record.crc, run.crc, run.bytes);
  record.bytes += run.bytes;
}

void TileWriter::write(const Unit& unit, const Piece& piece, const BufferBox& box, DType held,
                       std::span<std::byte> staging, TileRecord& record) {
  const std::int64_t held_bytes = element_bytes(held);
  // Runs that are contiguous in the box and in the storage are written directly. If the dtype differs, they pass
  // through the staging buffer.
  for_each_run(unit, piece, box, [&](std::int64_t offset, std::int64_t in_box, std::int64_t elements) {
    const std::byte* data = box.data + in_box * held_bytes;
    if (held == unit.to) return put(piece.storage, offset, data, elements * held_bytes, record);
    put_cast(unit, piece.storage, offset, data, elements, staging, record);
  });
}

std::byte* TileWriter::find_in_memory(const Unit& unit, const Piece& piece, const BufferBox& box, DType held) {
  // A caller may fill the target's memory only if no later step needs the bytes: no frame, checksum, record or cast.
  const bool is_made_of = framed_ || work_.checksums != nullptr || work_.options.log != nullptr || held != unit.to;
  if (is_made_of || !is_one_run(box.sizes, piece.strides.span())) return nullptr;
  std::byte* data = nullptr;
  for_each_run(unit, piece, box, [&](std::int64_t offset, std::int64_t, std::int64_t elements) {
    const Storage& written = work_.target.storages[piece.storage];
    const std::int64_t bytes = elements * element_bytes(unit.to);
    data = work_.files[written.file]->in_memory(written.offset + offset, static_cast<std::size_t>(bytes)).data();
    if (data == nullptr) return;
    work_.progress.write_calls.fetch_add(1, std::memory_order_relaxed);
    work_.progress.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
  });
  return data;
}

void TileWriter::flush() {
  if (framed_) work_.progress.write_calls += framed_->flush();
}

void TileWriter::put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                          std::int64_t elements, std::span<std::byte> staging, TileRecord& record) {
  const std::int64_t from_bytes = element_bytes(unit.from), to_bytes = element_bytes(unit.to);
  // Casts as many elements at once as fit in the staging buffer.
  const std::int64_t most = static_cast<std::int64_t>(staging.size()) / to_bytes;
  for (std::int64_t done = 0; done < elements; done += most) {
    const std::int64_t count = std::min(most, elements - done);
    const std::span<std::byte> out = staging.first(static_cast<std::size_t>(count * to_bytes));
    const std::span in(data + done * from_bytes, static_cast<std::size_t>(count * from_bytes));
    const std::int64_t overflows = cast(unit.from, in, unit.to, out);
    work_.progress.cast_overflows += overflows;
    record.cast_overflows += overflows;
    put(storage, offset + done * to_bytes, out.data(), count * to_bytes, record);
  }
}

/// Writes bytes at an offset of a storage. Its frame is part of the same write if the storage is small, or follows its
/// last bytes.
void TileWriter::put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes,
                     TileRecord& record) {
  const Storage& written = work_.target.storages[storage];
  if (framed_ && framed_->takes(storage, bytes))
    return put_framed(storage, {data, static_cast<std::size_t>(bytes)}, record);
  if (framed_ && offset == 0) work_.progress.write_calls += framed_->begin(storage);
  for (std::int64_t done = 0; done < bytes; done += kLongestWrite) {
    check_stop(work_.options.stop);
    const std::span block(data + done, static_cast<std::size_t>(std::min(kLongestWrite, bytes - done)));
    work_.files[written.file]->write_at(written.offset + offset + done, block);
    work_.progress.write_calls.fetch_add(1, std::memory_order_relaxed);
    work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(block.size()), std::memory_order_relaxed);
    if (work_.checksums == nullptr && work_.options.log == nullptr) continue;
    const CrcRun run{offset + done, std::ssize(block), storage, crc32(block)};
    if (work_.options.log != nullptr) count(record, run);
    if (work_.checksums == nullptr) continue;
    const auto whole = work_.checksums->record(storage, run.offset_bytes, run.bytes, run.crc);
    if (framed_ && whole) work_.progress.write_calls += framed_->end(storage, *whole);
  }
}

/// Writes a whole storage together with its frame.
void TileWriter::put_framed(std::uint32_t storage, std::span<const std::byte> bytes, TileRecord& record) {
  const std::uint32_t crc = crc32(bytes);
  if (work_.options.log != nullptr) count(record, {0, std::ssize(bytes), storage, crc});
  work_.progress.write_calls += framed_->add(storage, bytes, crc);
  work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(bytes.size()), std::memory_order_relaxed);
  work_.checksums->record(storage, 0, static_cast<std::int64_t>(bytes.size()), crc);
}

}  // namespace shard
