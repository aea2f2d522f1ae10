#include "libshard/exec/execute.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/checksums.h"
#include "libshard/exec/clones.h"
#include "libshard/exec/parallel.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/strided_copy.h"
#include "libshard/io/file_writer.h"
#include "libshard/plan/grid.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

constexpr std::int64_t kLongestWrite = 8 << 20;  // Longer runs are cut, so that a stop need not wait for long.

/// What all workers of one run share.
struct Work {
  const Plan& plan;
  const Catalog& source;
  const Reader& reader;
  const Catalog& target;
  std::span<FileWriter* const> files;
  const ExecuteOptions& options;
  Progress& progress;
  StorageChecksums* checksums;  ///< Null when not wanted.
  SourceChecks& source_checks;
  const Clones& clones;
  BufferPool& pool;
};

/// Copies tiles, each in three steps:
/// 1. lay_out: what target pieces want of the tile becomes boxes in the worker's buffer, each packed in the order of
/// its
///    target's strides, so that a write takes long runs. Replicas want the same elements and share one box.
/// 2. read: every source piece that overlaps the tile fills its part of those boxes.
/// 3. write: every target piece writes the box that it wants.
class Worker {
 public:
  explicit Worker(const Work& work)
      : work_(work),
        piece_reader_(work.source, work.reader, work.source_checks, work.progress, work.options.stop),
        buffer_(work.pool),
        staging_bytes_(staging_bytes(work.options.max_memory_bytes)) {
    if (work.options.framing != nullptr) framed_.emplace(*work.options.framing, work.files);
    if (work.options.log != nullptr) piece_reader_.set_summed(&record_.sources);
  }

  void copy_tile(std::int64_t tile) {
    const Unit& unit = work_.plan.unit_of(tile);
    const Box box = tile_box(unit, tile - unit.first_tile);
    tile_ = tile;
    if (work_.options.log != nullptr && is_written(unit, box)) return;
    begin_record(tile);
    work_.clones.for_each_rest(unit, box, [&](const Box& rest) { copy(unit, rest); });
    if (work_.options.log != nullptr) work_.options.log->add(std::move(record_));
  }
  /// Until the next tile.
  void release_memory() { buffer_.release(); }

 private:
  /// Copies a box of a unit.
  void copy(const Unit& unit, const Box& box) try {
    element_bytes_ = element_bytes(unit.from);
    const std::span<const Piece> to = work_.plan.to(unit);
    lay_out(to, box);
    const std::span<const Piece> from = work_.plan.from(unit);
    const auto [begin, end] = candidates(from, box);
    for (std::uint32_t i = begin; i < end; ++i) {
      const Box common = intersect(box, Box(from[i].offsets, from[i].sizes));
      if (!common.empty() && !take_received(i)) read(from[i], common, to);
    }
    for (const Wanted& each : wanted_) write(unit, to[each.piece], boxes_[each.box]);
    if (framed_) work_.progress.write_calls += framed_->flush();
  } catch (Error& error) {
    const bool is_input = error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
    if (is_input && unit.tensor != kNoIndex) error.of_tensor(work_.target.tensors[unit.tensor].name);
    throw;
  }

  /// Fills wanted_ and boxes_ for the part of a unit in `tile`. Invariant: wanted_ is in the order of the target
  /// pieces, and its boxes rise by 0 (a replica, whose box is that of the piece before it) or by 1. So what a range of
  /// target pieces wants is a range of boxes.
  void lay_out(std::span<const Piece> to, const Box& tile) {
    boxes_.clear(), begins_.clear(), wanted_.clear(), numbers_.clear();
    const auto [first, last] = candidates(to, tile);
    numbers_.reserve((last - first) * static_cast<std::size_t>(tile.dims) * 3);  // Never moves: boxes point into it.
    std::int64_t elements = 0;
    for (std::uint32_t i = first; i < last; ++i) {
      const Box common = intersect(tile, Box(to[i].offsets, to[i].sizes));
      if (common.empty()) continue;
      const bool is_replica = !wanted_.empty() && is_replica_of(to[wanted_.back().piece], to[i]);
      if (!is_replica) {
        boxes_.push_back(packed_box(to[i], common));
        begins_.push_back(elements);
        elements += common.numel();
      }
      wanted_.push_back({i, static_cast<std::uint32_t>(boxes_.size() - 1)});
    }
    const std::int64_t tile_bytes = (elements * element_bytes_ + kTilePadding - 1) / kTilePadding * kTilePadding;
    const std::span<std::byte> memory = buffer_.ensure(tile_bytes + staging_bytes_);
    staging_ = memory.subspan(static_cast<std::size_t>(tile_bytes));
    for (std::size_t i = 0; i < boxes_.size(); ++i) boxes_[i].data = memory.data() + begins_[i] * element_bytes_;
  }

  static bool is_replica_of(const Piece& a, const Piece& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }

  /// `box` without gaps, in the order of the piece's strides; its data are set later.
  BufferBox packed_box(const Piece& piece, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    const auto keep = [&](const auto& values) {
      const std::size_t begin = numbers_.size();
      numbers_.insert(numbers_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(dims));
      return std::span<const std::int64_t>(numbers_).subspan(begin, dims);
    };
    BufferBox packed;
    packed.offsets = keep(box.offset);
    packed.sizes = keep(box.size);
    Numbers strides;
    pack(packed.sizes, piece.strides.span(), strides);
    packed.strides = keep(strides);
    return packed;
  }

  /// Reads `box` of a source piece into the boxes of those target pieces that may overlap it.
  void read(const Piece& piece, const Box& box, std::span<const Piece> to) {
    const auto [begin, end] = candidates(to, box);
    const auto low = std::ranges::lower_bound(wanted_, begin, {}, &Wanted::piece);
    const auto high = std::ranges::lower_bound(low, wanted_.end(), end, {}, &Wanted::piece);
    if (low == high) return;
    const std::size_t first = low->box, last = std::prev(high)->box;
    piece_reader_.read(piece, box, static_cast<std::size_t>(element_bytes_),
                       std::span(boxes_).subspan(first, last - first + 1), staging_);
  }

  /// Copies what has arrived of a source piece into the boxes that want it. \returns false where nothing has.
  bool take_received(std::uint32_t piece) {
    const auto arrived = work_.options.feed == nullptr ? std::nullopt : work_.options.feed->received(tile_, piece);
    if (!arrived) return false;
    const Box all(arrived->offsets, arrived->sizes);
    Numbers strides;
    const BufferBox whole = row_major_box(all, arrived->data, strides);
    for (const BufferBox& box : boxes_) {
      const Box common = intersect(all, box.box());
      if (common.empty()) continue;
      const std::int64_t from = distance(whole.offsets.data(), common.offset.data(), whole.strides);
      const std::int64_t to = distance(box.offsets.data(), common.offset.data(), box.strides);
      strided_copy(std::span(common.size).first(whole.sizes.size()), whole.data + from * element_bytes_, whole.strides,
                   box.data + to * element_bytes_, box.strides, static_cast<std::size_t>(element_bytes_));
    }
    return true;
  }

  /// Calls `each` with every run of a target piece that takes a box: where it begins in the storage, in bytes, and in
  /// the buffer, and its elements.
  template <class Each>
  void for_each_run(const Unit& unit, const Piece& piece, const BufferBox& box, const Each& each) const {
    const std::int64_t to_bytes = element_bytes(unit.to);
    const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offsets.data(), piece.strides.span());
    walk_runs(box.sizes, piece.strides.span(), box.strides,
              [&](std::int64_t in_file, std::int64_t in_buffer, std::int64_t elements) {
                each((first + in_file) * to_bytes, box.data + in_buffer * element_bytes_, elements);
              });
  }

  void write(const Unit& unit, const Piece& piece, const BufferBox& box) {
    for_each_run(unit, piece, box, [&](std::int64_t offset, const std::byte* data, std::int64_t elements) {
      if (unit.from == unit.to) return put(piece.storage, offset, data, elements * element_bytes_);
      put_cast(unit, piece.storage, offset, data, elements);
    });
  }

  /// Whether an earlier run wrote the tile and its bytes are still there. Its checksums then count as if it were copied
  /// now; frames of its storages are written with the rest.
  bool is_written(const Unit& unit, const Box& box) {
    const TileRecord* const before = work_.options.log->written_before(tile_);
    if (before == nullptr) return false;
    begin_record(tile_);
    std::vector<CrcRun> runs;
    element_bytes_ = element_bytes(unit.from);
    work_.clones.for_each_rest(unit, box, [&](const Box& rest) {
      const std::span<const Piece> to = work_.plan.to(unit);
      lay_out(to, rest);
      for (const Wanted& each : wanted_) {
        const Piece& piece = to[each.piece];
        for_each_run(unit, piece, boxes_[each.box], [&](std::int64_t offset, const std::byte*, std::int64_t elements) {
          read_back(piece.storage, offset, elements * element_bytes(unit.to), runs);
        });
      }
    });
    if (record_.bytes != before->bytes || record_.crc != before->crc) return false;
    work_.source_checks.add_all(before->sources);
    if (work_.checksums != nullptr) {
      for (const CrcRun& run : runs) work_.checksums->record(run.storage, run.offset_bytes, run.bytes, run.crc);
    }
    work_.progress.bytes_kept.fetch_add(record_.bytes, std::memory_order_relaxed);
    work_.progress.cast_overflows += before->cast_overflows;
    return true;
  }

  void read_back(std::uint32_t storage, std::int64_t offset, std::int64_t bytes, std::vector<CrcRun>& runs) {
    const Storage& written = work_.target.storages[storage];
    for (std::int64_t done = 0; done < bytes; done += std::ssize(staging_)) {
      check_stop(work_.options.stop);
      const std::span block = staging_.first(static_cast<std::size_t>(std::min(std::ssize(staging_), bytes - done)));
      work_.files[written.file]->read_back(written.offset + offset + done, block);
      const CrcRun run{offset + done, std::ssize(block), storage, crc32(block)};
      count(run);
      if (work_.checksums != nullptr) runs.push_back(run);
    }
  }

  void begin_record(std::int64_t tile) {
    record_ = {};
    record_.tile = tile;
  }

  /// Adds what is written, or read back, to the tile's record.
  void count(const CrcRun& run) {
    record_.crc = crc32_combine(record_.crc, run.crc, run.bytes);
    record_.bytes += run.bytes;
  }

  void put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                std::int64_t elements) {
    const std::int64_t to_bytes = element_bytes(unit.to), most = staging_bytes_ / to_bytes;
    for (std::int64_t done = 0; done < elements; done += most) {
      const std::int64_t count = std::min(most, elements - done);
      const std::span<std::byte> out = staging_.first(static_cast<std::size_t>(count * to_bytes));
      const std::span in(data + done * element_bytes_, static_cast<std::size_t>(count * element_bytes_));
      const std::int64_t overflows = cast(unit.from, in, unit.to, out);
      work_.progress.cast_overflows += overflows;
      record_.cast_overflows += overflows;
      put(storage, offset + done * to_bytes, out.data(), count * to_bytes);
    }
  }

  /// Writes bytes at an offset of a storage.
  void put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes) {
    const Storage& written = work_.target.storages[storage];
    if (framed_ && framed_->takes(storage, bytes)) return put_framed(storage, {data, static_cast<std::size_t>(bytes)});
    for (std::int64_t done = 0; done < bytes; done += kLongestWrite) {
      check_stop(work_.options.stop);
      const std::span block(data + done, static_cast<std::size_t>(std::min(kLongestWrite, bytes - done)));
      work_.files[written.file]->write_at(written.offset + offset + done, block);
      work_.progress.write_calls.fetch_add(1, std::memory_order_relaxed);
      work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(block.size()), std::memory_order_relaxed);
      if (work_.checksums == nullptr && work_.options.log == nullptr) continue;
      const CrcRun run{offset + done, std::ssize(block), storage, crc32(block)};
      if (work_.options.log != nullptr) count(run);
      if (work_.checksums != nullptr) work_.checksums->record(storage, run.offset_bytes, run.bytes, run.crc);
    }
  }

  /// A whole storage: its frame is written with it.
  void put_framed(std::uint32_t storage, std::span<const std::byte> bytes) {
    const std::uint32_t crc = crc32(bytes);
    if (work_.options.log != nullptr) count({0, std::ssize(bytes), storage, crc});
    work_.progress.write_calls += framed_->add(storage, bytes, crc);
    work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(bytes.size()), std::memory_order_relaxed);
    work_.checksums->record(storage, 0, static_cast<std::int64_t>(bytes.size()), crc);
  }

  /// A target piece that overlaps the tile.
  struct Wanted {
    std::uint32_t piece;  ///< Into the unit's target pieces.
    std::uint32_t box;    ///< Into boxes_.
  };

  const Work& work_;
  PieceReader piece_reader_;
  std::optional<FramedWrites> framed_;
  Buffer buffer_;
  const std::int64_t staging_bytes_;
  std::int64_t tile_ = 0;
  std::int64_t element_bytes_ = 1;  ///< In the source's dtype: the buffer holds elements as they were read.
  std::span<std::byte> staging_;
  std::vector<BufferBox> boxes_;
  std::vector<std::int64_t> begins_;   ///< Where each box begins in the buffer, in elements.
  std::vector<std::int64_t> numbers_;  ///< Offsets, sizes and strides of the boxes.
  std::vector<Wanted> wanted_;
  TileRecord record_;  ///< Of the tile so far, with a log.
};

/// Copies tiles as they become ready.
void execute_feed(const Work& work, TileFeed& feed) {
  const auto threads = static_cast<std::size_t>(std::max(1, work.options.threads));
  for_each_index(threads, work.options.threads, work.options.stop, [&]() -> IndexWorker {
    return [&](std::size_t) {
      try {
        Worker worker(work);
        // Tiles that wait for memory may be those that others wait for.
        const auto let_go = [&worker] { worker.release_memory(); };
        while (const std::optional<std::int64_t> tile = feed.next(let_go)) {
          worker.copy_tile(*tile);
          feed.done(*tile);
        }
      } catch (...) {
        feed.abort();
        throw;
      }
    };
  });
}

}  // namespace

void check_stop(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
}

std::unique_ptr<StorageChecksums> execute(const Plan& plan, const Catalog& source, const Reader& reader,
                                          const Catalog& target, std::span<FileWriter* const> files,
                                          const ExecuteOptions& options, Progress& progress) {
  const TileRange tiles = options.tiles.value_or(TileRange{0, plan.tile_count});
  auto checksums = std::make_unique<StorageChecksums>(options.checksums ? std::span<const Storage>(target.storages)
                                                                        : std::span<const Storage>());
  Clones clones;
  if (options.cloner != nullptr && !options.checksums) {
    clones = clone_runs(plan, tiles, source, reader, target, files, *options.cloner, progress);
  }
  SourceChecks own_checks(source);
  BufferPool own_pool(options.max_memory_bytes);
  const Work work{.plan = plan,
                  .source = source,
                  .reader = reader,
                  .target = target,
                  .files = files,
                  .options = options,
                  .progress = progress,
                  .checksums = options.checksums ? checksums.get() : nullptr,
                  .source_checks = options.source_checks != nullptr ? *options.source_checks : own_checks,
                  .clones = clones,
                  .pool = options.pool != nullptr ? *options.pool : own_pool};
  if (options.feed != nullptr) {
    execute_feed(work, *options.feed);
    return checksums;
  }
  const auto count = static_cast<std::size_t>(tiles.end - tiles.begin);
  for_each_index(count, options.threads, options.stop, [&]() -> IndexWorker {
    return [worker = std::make_shared<Worker>(work), begin = tiles.begin](std::size_t tile) {
      worker->copy_tile(begin + static_cast<std::int64_t>(tile));
    };
  });
  return checksums;
}

}  // namespace shard
