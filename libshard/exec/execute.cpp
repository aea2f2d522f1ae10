#include "libshard/exec/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/clones.h"
#include "libshard/exec/device_worker.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/store_copies.h"
#include "libshard/exec/streamed_tiles.h"
#include "libshard/exec/strided_copy.h"
#include "libshard/exec/tile_boxes.h"
#include "libshard/exec/tile_work.h"
#include "libshard/exec/tile_writer.h"
#include "libshard/plan/grid.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

/// Calls `each` with the checksums of a run of a storage of the target, which it reads back.
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

/// Reads the tile back and compares it with its record. If they match, its checksums count as if it had just been
/// copied. The frames of its storages are written with the rest. \param staging  memory to read into
/// \throws Error kResource  the written bytes cannot be read; kInterrupted
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

constexpr std::int64_t kLeastPlan = 1 << 20;  // The least memory that plan_copies accepts, in bytes.

/// Copies tiles, each in three steps:
/// 1. Lay out: reserve a box in the worker's buffer for each target piece that overlaps the tile.
/// 2. Read: every source piece that overlaps the tile fills its part of those boxes. If a source has the elements in
/// memory in the target's order, they are used there without a copy.
/// 3. Write: write each target piece's box.
class Worker {
 public:
  explicit Worker(const TileWork& work)
      : work_(work),
        piece_reader_(work.source, work.reader, work.source_checks, work.progress, work.options.stop),
        writer_(work),
        buffer_(work.pool),
        staging_bytes_(staging_bytes(work.memory_bytes, work.options.threads)) {
    if (work.options.log != nullptr) piece_reader_.set_record(&record_);
  }

  /// Whether an earlier run wrote the tile. Such a tile counts as copied.
  bool keeps(std::int64_t tile) {
    if (work_.options.log == nullptr) return false;
    const TileRecord* const before = work_.options.log->written_before(tile);
    if (before == nullptr) return false;
    const std::span<std::byte> memory = buffer_.ensure(staging_bytes_);
    return is_still_written(work_, *before, memory.first(static_cast<std::size_t>(staging_bytes_)));
  }

  void copy_tile(std::int64_t tile) {
    const Unit& unit = work_.plan.unit_of(tile);
    const Box box = tile_box(unit, tile - unit.first_tile);
    tile_ = tile;
    record_ = {};
    is_summed_ = true;
    work_.clones.for_each_rest(unit, box, [&](const Box& rest) { copy(unit, rest); });
    if (work_.options.log == nullptr || !is_summed_) return;
    record_.tile = tile;
    work_.options.log->add(std::move(record_));
  }
  /// Releases the buffer until the next tile.
  void release_memory() { buffer_.release(); }

 private:
  void copy(const Unit& unit, const Box& box) try {
    element_bytes_ = element_bytes(unit.from);
    is_in_target_ = false;
    const std::span<const Piece> to = work_.plan.to(unit), from = work_.plan.from(unit);
    boxes_.lay_out(to, box);
    if (fill_in_memory(unit, from, to, box)) return;
    if (!find_in_memory(from, box)) {
      place_in_buffer();
      fill(from, to, box);
    }
    for (const TileBoxes::Wanted& each : boxes_.wanted()) {
      writer_.write(unit, to[each.piece], boxes_.box(each), unit.from, staging_, record_);
    }
    writer_.flush();
  } catch (Error& error) {
    name_tensor(error, work_, unit);
    throw;
  }

  /// Avoids a copy if one source piece in memory contains the whole box.
  bool find_in_memory(std::span<const Piece> from, const Box& box) {
    if (work_.options.feed != nullptr || boxes_.boxes().size() != 1) return false;
    const auto [begin, end] = candidates(from, box);
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::byte* const data =
          piece_reader_.find_in_memory(from[i], static_cast<std::size_t>(element_bytes_), boxes_.boxes().front());
      if (data == nullptr) continue;
      staging_ = buffer_.ensure(staging_bytes_);
      boxes_.place(const_cast<std::byte*>(data), element_bytes_);  // The boxes are only read here, never modified.
      return true;
    }
    return false;
  }

  /// If only one target piece needs data from the box, and its target keeps it in memory, reads the box directly into
  /// that memory.
  bool fill_in_memory(const Unit& unit, std::span<const Piece> from, std::span<const Piece> to, const Box& box) {
    if (boxes_.wanted().size() != 1) return false;
    const TileBoxes::Wanted& wanted = boxes_.wanted().front();
    std::byte* const data = writer_.find_in_memory(unit, to[wanted.piece], boxes_.box(wanted), unit.from);
    if (data == nullptr) return false;
    staging_ = buffer_.ensure(staging_bytes_);
    boxes_.place(data, element_bytes_);
    is_in_target_ = true;
    fill(from, to, box);
    return true;
  }

  /// One buffer contains the boxes, and after them the staging memory. The boxes are padded to a multiple of
  /// kTilePadding.
  void place_in_buffer() {
    const std::int64_t bytes = (boxes_.elements() * element_bytes_ + kTilePadding - 1) / kTilePadding * kTilePadding;
    const std::span<std::byte> memory = buffer_.ensure(bytes + staging_bytes_);
    staging_ = memory.subspan(static_cast<std::size_t>(bytes));
    boxes_.place(memory.data(), element_bytes_);
  }

  /// Reads the needed parts of a box into the buffer's boxes.
  void fill(std::span<const Piece> from, std::span<const Piece> to, const Box& box) {
    const auto [begin, end] = candidates(from, box);
    if (end - begin > 1 && work_.options.feed == nullptr) expect(from.subspan(begin, end - begin), to, box);
    for (std::uint32_t i = begin; i < end; ++i) {
      const Box common = intersect(box, Box(from[i].offsets, from[i].sizes));
      if (!common.empty() && !take_received(from[i], i)) read(from[i], common, to);
    }
  }

  /// Announces the reads of a box from several pieces.
  void expect(std::span<const Piece> from, std::span<const Piece> to, const Box& box) {
    for (const Piece& piece : from) {
      const Box common = intersect(box, Box(piece.offsets, piece.sizes));
      if (common.empty() || boxes_.boxes_for(to, common).empty()) continue;
      if (!piece_reader_.expect(piece, common, static_cast<std::size_t>(element_bytes_))) return;
    }
  }

  /// Reads `box` of a source piece into the boxes of the target pieces that may overlap it.
  void read(const Piece& piece, const Box& box, std::span<const Piece> to) {
    const std::span<const BufferBox> boxes = boxes_.boxes_for(to, box);
    if (boxes.empty()) return;
    piece_reader_.read(piece, box, static_cast<std::size_t>(element_bytes_), boxes, staging_, is_in_target_);
  }

  /// Copies the received data of a source piece into the boxes that need it. \returns false if nothing was received.
  bool take_received(const Piece& source_piece, std::uint32_t piece) {
    const auto arrived = work_.options.feed == nullptr ? std::nullopt : work_.options.feed->received(tile_, piece);
    if (!arrived) return false;
    const Box all(arrived->offsets, arrived->sizes);
    if (work_.options.log != nullptr) {
      is_summed_ = sum_received(work_.source, source_piece, *arrived, element_bytes_, record_.sources) && is_summed_;
    }
    Numbers strides;
    const BufferBox whole = row_major_box(all, arrived->data, strides);
    for (const BufferBox& box : boxes_.boxes()) {
      const Box common = intersect(all, box.box());
      if (common.empty()) continue;
      // Both addresses are those of the first common element: sum of (index - offset) * stride over the dimensions.
      const std::int64_t from = distance(whole.offsets.data(), common.offset.data(), whole.strides);
      const std::int64_t to = distance(box.offsets.data(), common.offset.data(), box.strides);
      strided_copy(common.sizes(), whole.data + from * element_bytes_, whole.strides, box.data + to * element_bytes_,
                   box.strides, static_cast<std::size_t>(element_bytes_));
    }
    return true;
  }

  const TileWork& work_;
  PieceReader piece_reader_;
  TileWriter writer_;
  Buffer buffer_;
  const std::int64_t staging_bytes_;
  std::int64_t tile_ = 0;
  std::int64_t element_bytes_ = 1;  ///< In the source's dtype, because the buffer precedes the conversion.
  std::span<std::byte> staging_;
  TileBoxes boxes_;
  bool is_in_target_ = false;  ///< Whether the boxes are in the target's memory, not in the buffer.
  TileRecord record_;          ///< The record of the current tile so far.
  bool is_summed_ = true;      ///< Whether the record's sources contain everything that a later run needs.
};

/// A feed of the tiles in a range, all of which are ready.
class RangeFeed final : public TileFeed {
 public:
  RangeFeed(const TileRange& tiles, std::stop_token stop)
      : next_(tiles.begin), end_(tiles.end), stop_(std::move(stop)) {}
  void set_written(std::vector<std::uint8_t> written) override { written_ = std::move(written); }
  std::optional<std::int64_t> next(const std::function<void()>&) override {
    for (;;) {
      check_stop(stop_);
      const std::int64_t tile = next_++;  // Tiles are numbers, so taking one is a single atomic addition.
      if (tile >= end_ || is_aborted_) return std::nullopt;
      if (written_[static_cast<std::size_t>(tile)] == 0) return tile;
    }
  }
  std::optional<ReceivedBox> received(std::int64_t, std::uint32_t) override { return std::nullopt; }
  void done(std::int64_t) override {}
  void abort() override { is_aborted_ = true; }

 private:
  std::vector<std::uint8_t> written_;
  std::atomic<std::int64_t> next_;
  const std::int64_t end_;
  const std::stop_token stop_;
  std::atomic<bool> is_aborted_ = false;
};

/// Returns for each tile of the plan whether an earlier run wrote it. Such tiles in `tiles` count as copied.
std::vector<std::uint8_t> find_written(const TileWork& work, const TileRange& tiles) {
  std::vector<std::uint8_t> written(static_cast<std::size_t>(work.plan.tile_count));
  if (work.options.log == nullptr) return written;
  for_each_index(static_cast<std::size_t>(tiles.end - tiles.begin), work.options.threads, work.options.stop,
                 [&]() -> IndexWorker {
                   return [&, worker = std::make_shared<Worker>(work)](std::size_t number) {
                     const std::size_t tile = static_cast<std::size_t>(tiles.begin) + number;
                     written[tile] = worker->keeps(static_cast<std::int64_t>(tile)) ? 1 : 0;
                   };
                 });
  return written;
}

/// Calls `copy_all` in `workers` threads with the feed. \throws Error  the first error of any thread
void with_feed(const TileWork& work, int workers, TileFeed& feed, const std::function<void()>& copy_all) {
  for_each_index(static_cast<std::size_t>(workers), workers, work.options.stop, [&]() -> IndexWorker {
    return [&](std::size_t) {
      try {
        copy_all();
      } catch (...) {
        feed.abort();
        throw;
      }
    };
  });
}

/// Copies tiles in the order in which they become ready.
void execute_feed(const TileWork& work, TileFeed& feed) {
  with_feed(work, std::max(1, work.options.threads), feed, [&] {
    Worker worker(work);
    // Releases memory before waiting, because other ranks may be waiting for a tile that waits for memory.
    const auto let_go = [&worker] { worker.release_memory(); };
    while (const std::optional<std::int64_t> tile = feed.next(let_go)) {
      worker.copy_tile(*tile);
      feed.done(*tile);
    }
  });
}

/// Does the same through a device, except for tiles that do not need it.
void execute_on_device(const TileWork& work, TileFeed& feed) {
  const DeviceShare share = device_share(work.plan, work.options.max_memory_bytes, work.options.threads);
  with_feed(work, share.workers, feed, [&] {
    Worker host(work);
    DeviceWorker device(work, feed, share);
    const auto let_go = [&] {
      device.finish();
      host.release_memory();
    };
    while (const std::optional<std::int64_t> tile = feed.next(let_go)) {
      if (device.takes(*tile)) {
        device.begin(*tile);
        continue;
      }
      host.copy_tile(*tile);
      feed.done(*tile);
    }
    device.finish();
  });
}

/// The largest factor by which elements grow in a conversion, rounded up.
std::int64_t widest_growth(const Catalog& source, const Catalog& target) {
  std::int64_t growth = 1;
  for (const Tensor& tensor : target.tensors) {
    if (tensor.source == kNoIndex || source.tensors[tensor.source].dtype == tensor.dtype) continue;
    const std::int64_t from = element_bytes(source.tensors[tensor.source].dtype), to = element_bytes(tensor.dtype);
    growth = std::max(growth, (to + from - 1) / from);
  }
  return growth;
}

}  // namespace

std::int64_t least_memory_on_device(const Catalog& source, const Catalog& target) {
  return 4 * widest_growth(source, target) * kLeastPlan;
}

std::int64_t tile_memory_on_device(std::int64_t max_memory_bytes, const Catalog& source, const Catalog& target) {
  const std::int64_t least_bytes = least_memory_on_device(source, target);
  if (max_memory_bytes >= least_bytes) return max_memory_bytes / (least_bytes / kLeastPlan);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cannot copy tiles through a device within {} bytes of memory", max_memory_bytes))
      .expected(fmt::format("at least {}MiB", least_bytes >> 20))
      .found(max_memory_bytes)
      .suggest(Remedy::kMoreMemory);
}

std::unique_ptr<StorageChecksums> execute(const Plan& plan, const Catalog& source, const Reader& reader,
                                          const Catalog& target, std::span<FileWriter* const> files,
                                          const ExecuteOptions& options, Progress& progress) {
  const TileRange tiles = options.tiles.value_or(TileRange{0, plan.tile_count});
  auto checksums = std::make_unique<StorageChecksums>(options.checksums ? std::span<const Storage>(target.storages)
                                                                        : std::span<const Storage>());
  Clones clones;
  if (options.reflink_disk != nullptr && !options.checksums) {
    clones = clone_runs(plan, tiles, source, reader, target, files, *options.reflink_disk, progress);
  } else {
    clones = copy_in_store(plan, tiles, source, reader, target, files, options.checksums ? checksums.get() : nullptr,
                           options.stop, progress);
    check_stop(options.stop);
  }
  SourceChecks own_checks(source);
  const bool has_device = options.device != nullptr;
  const std::int64_t own_bytes = has_device ? options.max_memory_bytes / 4 : options.max_memory_bytes;
  BufferPool own_pool(own_bytes);
  const TileWork work{.plan = plan,
                      .source = source,
                      .reader = reader,
                      .target = target,
                      .files = files,
                      .options = options,
                      .progress = progress,
                      .checksums = options.checksums ? checksums.get() : nullptr,
                      .source_checks = options.source_checks != nullptr ? *options.source_checks : own_checks,
                      .clones = clones,
                      .pool = options.pool != nullptr ? *options.pool : own_pool,
                      .memory_bytes = own_bytes};
  if (has_device || options.feed != nullptr) {
    RangeFeed all(tiles, options.stop);
    TileFeed& feed = options.feed != nullptr ? *options.feed : all;
    feed.set_written(find_written(work, tiles));
    has_device ? execute_on_device(work, feed) : execute_feed(work, feed);
    return checksums;
  }
  const std::vector<std::uint8_t> streamed = stream_tiles(work, tiles);
  for_each_index(streamed.size(), options.threads, options.stop, [&]() -> IndexWorker {
    return [&, worker = std::make_shared<Worker>(work), begin = tiles.begin](std::size_t number) {
      if (streamed[number] != 0) return;
      const std::int64_t tile = begin + static_cast<std::int64_t>(number);
      if (!worker->keeps(tile)) worker->copy_tile(tile);
    };
  });
  return checksums;
}

}  // namespace shard
