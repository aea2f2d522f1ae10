#include "libshard/exec/written_tile.h"

#include <algorithm>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/exec/tile_boxes.h"
#include "libshard/exec/tile_writer.h"

namespace shard {

namespace {

/// Calls `each` with the checksums of a run of a storage of the target.
template <class Each>
void sum_back(const TileWork& work, std::uint32_t storage, std::int64_t offset, std::int64_t bytes,
              std::span<std::byte> staging, const Each& each) {
  const Storage& written = work.target.storages[storage];
  for (std::int64_t done = 0; done < bytes; done += std::ssize(staging)) {
    check_stop(work.options.stop);
    const auto block = staging.first(static_cast<std::size_t>(std::min(std::ssize(staging), bytes - done)));
    work.files[written.file]->read_back(written.offset + offset + done, block);
    each(CrcRun{offset + done, std::ssize(block), storage, crc32(block)});
  }
}

}  // namespace

bool is_still_written(const TileWork& work, const TileRecord& before, std::span<std::byte> staging) {
  const Unit& unit = work.plan.unit_of(before.tile);
  const std::span<const Piece> to = work.plan.to(unit);
  const std::int64_t to_bytes = element_bytes(unit.to);
  TileRecord found;
  TileBoxes boxes;
  std::vector<CrcRun> runs;
  work.clones.for_each_rest(unit, tile_box(unit, before.tile - unit.first_tile), [&](const Box& rest) {
    boxes.lay_out(to, rest);
    for (const TileBoxes::Wanted& each : boxes.wanted()) {
      const Piece& piece = to[each.piece];
      for_each_run(unit, piece, boxes.box(each), [&](std::int64_t offset, std::int64_t, std::int64_t elements) {
        sum_back(work, piece.storage, offset, elements * to_bytes, staging, [&](const CrcRun& run) {
          count(found, run);
          if (work.checksums != nullptr) runs.push_back(run);
        });
      });
    }
  });
  if (found.bytes != before.bytes || found.crc != before.crc) return false;
  work.source_checks.add_all(before.sources);
  for (const CrcRun& run : runs) work.checksums->record(run.storage, run.offset_bytes, run.bytes, run.crc);
  work.progress.bytes_kept.fetch_add(found.bytes, std::memory_order_relaxed);
  work.progress.cast_overflows += before.cast_overflows;
  return true;
}

}  // namespace shard
