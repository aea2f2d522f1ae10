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
#include "libshard/io/file_writer.h"
#include "libshard/plan/grid.h"

namespace shard {

namespace {

constexpr std::int64_t kLongestWrite = 8 << 20;  // Longer runs are cut, so that a stop need not wait for long.

/// What all workers of one run share.
struct Work {
  Work(const Plan& of, const Catalog& from, const Reader& by, const Catalog& to, std::span<FileWriter* const> into,
       const ExecuteOptions& how, Progress& counters, StorageChecksums* sums, SourceChecks& read, const Clones& cloned)
      : plan(of),
        source(from),
        reader(by),
        target(to),
        files(into),
        options(how),
        progress(counters),
        checksums(sums),
        source_checks(read),
        clones(cloned),
        pool(how.max_memory_bytes) {}

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
  BufferPool pool;
};

/// Copies tiles: reads all of a tile into its buffer, in the order of the target, and writes it.
class Worker {
 public:
  explicit Worker(Work& work)
      : work_(work),
        piece_reader_(work.source, work.reader, work.source_checks, work.progress, work.options.stop),
        buffer_(work.pool),
        staging_bytes_(staging_bytes(work.options.max_memory_bytes)) {
    if (work.options.framing != nullptr) framed_.emplace(*work.options.framing, work.files);
  }

  void copy_tile(std::int64_t tile) {
    const Unit& unit = work_.plan.unit_of(tile);
    const Box box = tile_box(unit, tile - unit.first_tile);
    work_.clones.for_each_rest(unit, box, [&](const Box& rest) { copy(unit, rest); });
  }

 private:
  /// Copies a box of a unit.
  void copy(const Unit& unit, const Box& box) try {
    element_bytes_ = dtype_bits(unit.from) / 8;
    const std::span<const Piece> to = work_.plan.to(unit);
    const auto [first, last] = candidates(to, box);
    lay_out(to.subspan(first, last - first), box);
    const std::span<const Piece> from = work_.plan.from(unit);
    const auto [begin, end] = candidates(from, box);
    for (const Piece& piece : from.subspan(begin, end - begin)) {
      const Box common = intersect(box, Box(piece.offsets, piece.sizes));
      if (!common.empty()) read(piece, common, to, first);
    }
    for (const Target& each : targets_) write(unit, *each.piece, places_[each.place]);
    if (framed_) work_.progress.write_calls += framed_->flush();
  } catch (Error& error) {
    const bool is_input = error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
    if (is_input && unit.tensor != kNoIndex) error.of_tensor(work_.target.tensors[unit.tensor].name);
    throw;
  }

  /// Gives each target piece that meets `box` its place in the buffer, packed in the order of its storage; replicas
  /// share one. Fills places_, place_of_ (one a piece) and targets_.
  void lay_out(std::span<const Piece> pieces, const Box& box) {
    places_.clear(), place_of_.clear(), targets_.clear(), numbers_.clear();
    numbers_.reserve(pieces.size() * static_cast<std::size_t>(box.dims) * 3);  // Never moves: places point into it.
    const Piece* last = nullptr;
    std::int64_t elements = 0;
    for (const Piece& piece : pieces) {
      const Box common = intersect(box, Box(piece.offsets, piece.sizes));
      const bool is_replica = last != nullptr && last->offsets == piece.offsets && last->sizes == piece.sizes;
      if (!common.empty() && !is_replica) {
        places_.push_back(make_place(piece, common));
        offsets_in_buffer_.resize(places_.size());
        offsets_in_buffer_.back() = elements;
        elements += common.numel();
        last = &piece;
      }
      place_of_.push_back(
          static_cast<std::uint32_t>(places_.size()));  // One past the piece's own place, if it has one.
      if (!common.empty()) targets_.push_back({&piece, static_cast<std::uint32_t>(places_.size() - 1)});
    }
    const std::int64_t tile_bytes = (elements * element_bytes_ + kTilePadding - 1) / kTilePadding * kTilePadding;
    const std::span<std::byte> memory = buffer_.ensure(tile_bytes + staging_bytes_);
    staging_ = memory.subspan(static_cast<std::size_t>(tile_bytes));
    for (std::size_t i = 0; i < places_.size(); ++i)
      places_[i].data = memory.data() + offsets_in_buffer_[i] * element_bytes_;
  }

  Place make_place(const Piece& piece, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    const auto keep = [&](const auto& values) {
      const std::size_t begin = numbers_.size();
      numbers_.insert(numbers_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(dims));
      return std::span<const std::int64_t>(numbers_).subspan(begin, dims);
    };
    Place place;
    place.offsets = keep(box.offset);
    place.sizes = keep(box.size);
    Numbers packed;
    pack(place.sizes, piece.strides.span(), packed);
    place.strides = keep(packed);
    return place;
  }

  void read(const Piece& piece, const Box& box, std::span<const Piece> to, std::uint32_t first) {
    const auto [begin, end] = candidates(to, box);
    const std::size_t known = place_of_.size();
    const std::size_t low = begin > first ? std::min<std::size_t>(begin - first, known) : 0;
    const std::size_t high = end > first ? std::min<std::size_t>(end - first, known) : 0;
    if (high == 0) return;
    const std::size_t from_place = low == 0 ? 0 : place_of_[low - 1];
    // A replica's place is that of the piece before it, so the first of them is looked at too.
    const std::size_t begin_place = from_place == 0 ? 0 : from_place - 1;
    piece_reader_.gather(piece, box, static_cast<std::size_t>(element_bytes_),
                         std::span(places_).subspan(begin_place, place_of_[high - 1] - begin_place), staging_);
  }

  void write(const Unit& unit, const Piece& piece, const Place& place) {
    const std::int64_t to_bytes = dtype_bits(unit.to) / 8;
    const std::int64_t first =
        piece.first + distance(piece.offsets.begin(), place.offsets.data(), piece.strides.span());
    walk_runs(place.sizes, piece.strides.span(), place.strides,
              [&](std::int64_t in_file, std::int64_t in_buffer, std::int64_t elements) {
                const std::byte* data = place.data + in_buffer * element_bytes_;
                const std::int64_t offset = (first + in_file) * to_bytes;
                if (unit.from == unit.to) return put(piece.storage, offset, data, elements * element_bytes_);
                put_cast(unit, piece.storage, offset, data, elements);
              });
  }

  void put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                std::int64_t elements) {
    const std::int64_t to_bytes = dtype_bits(unit.to) / 8, most = staging_bytes_ / to_bytes;
    for (std::int64_t done = 0; done < elements; done += most) {
      const std::int64_t count = std::min(most, elements - done);
      const std::span<std::byte> out = staging_.first(static_cast<std::size_t>(count * to_bytes));
      const std::span in(data + done * element_bytes_, static_cast<std::size_t>(count * element_bytes_));
      work_.progress.cast_overflows += cast(unit.from, in, unit.to, out);
      put(storage, offset + done * to_bytes, out.data(), count * to_bytes);
    }
  }

  /// Writes bytes at an offset of a storage.
  void put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes) {
    const Storage& place = work_.target.storages[storage];
    if (framed_ && framed_->takes(storage, bytes)) return put_framed(storage, {data, static_cast<std::size_t>(bytes)});
    for (std::int64_t done = 0; done < bytes; done += kLongestWrite) {
      check_stop(work_.options.stop);
      const std::span block(data + done, static_cast<std::size_t>(std::min(kLongestWrite, bytes - done)));
      work_.files[place.file]->write_at(place.offset + offset + done, block);
      work_.progress.write_calls.fetch_add(1, std::memory_order_relaxed);
      work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(block.size()), std::memory_order_relaxed);
      if (work_.checksums == nullptr) continue;
      work_.checksums->record(storage, offset + done, static_cast<std::int64_t>(block.size()), crc32(block));
    }
  }

  /// A whole storage: its frame is written with it.
  void put_framed(std::uint32_t storage, std::span<const std::byte> bytes) {
    const std::uint32_t crc = crc32(bytes);
    work_.progress.write_calls += framed_->add(storage, bytes, crc);
    work_.progress.bytes_written.fetch_add(static_cast<std::int64_t>(bytes.size()), std::memory_order_relaxed);
    work_.checksums->record(storage, 0, static_cast<std::int64_t>(bytes.size()), crc);
  }

  struct Target {
    const Piece* piece;
    std::uint32_t place;  ///< Into places_.
  };

  Work& work_;
  PieceReader piece_reader_;
  std::optional<FramedWrites> framed_;
  Buffer buffer_;
  const std::int64_t staging_bytes_;
  std::int64_t element_bytes_ = 1;  ///< Of the source's dtype: the buffer holds elements as they were read.
  std::span<std::byte> staging_;
  std::vector<Place> places_;
  std::vector<std::int64_t> offsets_in_buffer_, numbers_;
  std::vector<std::uint32_t> place_of_;
  std::vector<Target> targets_;
};

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
  Work work(plan, source, reader, target, files, options, progress, options.checksums ? checksums.get() : nullptr,
            options.source_checks != nullptr ? *options.source_checks : own_checks, clones);
  const auto count = static_cast<std::size_t>(tiles.end - tiles.begin);
  for_each_index(count, options.threads, options.stop, [&]() -> IndexWorker {
    return [worker = std::make_shared<Worker>(work), begin = tiles.begin](std::size_t tile) {
      worker->copy_tile(begin + static_cast<std::int64_t>(tile));
    };
  });
  return checksums;
}

}  // namespace shard
