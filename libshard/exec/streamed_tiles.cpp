#include "libshard/exec/streamed_tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/exec/line_pairs.h"
#include "libshard/exec/tile_writer.h"

namespace shard {

namespace {

constexpr std::int64_t kLongestStream = 8 << 20, kLeastStream = 1 << 20;
constexpr std::int64_t kMostHeld = 1 << 20;     ///< Collected for a write, as a file takes one at a time.
constexpr std::int64_t kLongestGap = 64 << 10;  ///< Bytes between two runs that are read and dropped.
constexpr std::int64_t kTilesPerDivided = 8;    ///< At most one in this many tiles of a streamed unit is divided.

/// A tile that is one run on both sides.
struct TileRun {
  std::int64_t tile;
  std::int64_t begin, bytes;  ///< In the source file.
  std::int64_t offset;        ///< In the storage of the target.
  std::uint32_t file, storage;

  std::int64_t end() const { return begin + bytes; }
};

bool has_record(const TileWork& work, std::int64_t tile) {
  return work.options.log != nullptr && work.options.log->written_before(tile) != nullptr;
}

/// Appends the tiles of a line in [begin, end), which one source piece and one target piece have in common, except
/// those with a record. \returns the number of all
std::int64_t add_tiles(const TileWork& work, const Unit& unit, const Piece& from, const Piece& to, std::int64_t begin,
                       std::int64_t end, std::vector<TileRun>& runs) {
  const Storage& read = work.source.storages[from.storage];
  const std::int64_t length = unit.tile[0], first_number = ceil_div(begin, length);
  std::int64_t number = first_number;
  for (; number < unit.tile_count; ++number) {
    const std::int64_t first = number * length, last = std::min(first + length, unit.shape[0]);
    if (last > end) break;
    if (has_record(work, unit.first_tile + number)) continue;
    runs.push_back({.tile = unit.first_tile + number,
                    .begin = line_begin(read, from) + first,
                    .bytes = last - first,
                    .offset = to.first - to.offsets[0] + first,
                    .file = read.file,
                    .storage = to.storage});
  }
  return std::max<std::int64_t>(0, number - first_number);
}

/// The streams of the source's files. Most files of a source are in one store, so if the first that is asked has no
/// streams, none of the others is opened.
class SourceStreams {
 public:
  explicit SourceStreams(const TileWork& work) : work_(work) {}

  /// Whether the first file that was asked has no streams.
  bool has_none() const { return first_ == 0; }
  bool has(std::uint32_t file) {
    if (has_none()) return false;
    if (file >= by_file_.size()) by_file_.resize(file + std::size_t{1}, kUnknown);
    int& streams = by_file_[file];
    if (streams == kUnknown) streams = work_.reader.file(file)->streams_at_once();
    if (first_ == kUnknown) first_ = streams;
    return streams != 0;
  }
  /// The number of streams at one time.
  int at_once() const { return std::max(1, first_); }

 private:
  static constexpr int kUnknown = -1;

  const TileWork& work_;
  std::vector<int> by_file_;
  int first_ = kUnknown;
};

/// The tiles that can be streamed, by source file and position.
std::vector<TileRun> find_runs(const TileWork& work, const TileRange& tiles, SourceStreams& streams) {
  std::vector<TileRun> runs;
  for (const Unit& unit : work.plan.units) {
    if (streams.has_none()) break;
    if (!is_line_without_replicas(work.plan, unit) || work.clones.ranges.contains(unit.first_tile)) continue;
    const std::size_t before = runs.size();
    std::int64_t found = 0;
    for_each_line_pair(work.plan, unit, tiles, [&](const Piece& from, const Piece& to, std::int64_t begin, auto end) {
      const Storage& read = work.source.storages[from.storage];
      const bool is_local = work.files[work.target.storages[to.storage].file]->descriptor() >= 0;
      if (!is_local || !read.plain || read.crc32) return;
      if (streams.has(read.file)) found += add_tiles(work, unit, from, to, begin, end, runs);
    });
    const std::int64_t first = std::max(unit.first_tile, tiles.begin);
    const std::int64_t all = std::min(unit.first_tile + unit.tile_count, tiles.end) - first;
    if (found < all - all / kTilesPerDivided) runs.resize(before);
  }
  std::ranges::sort(runs, {}, [](const TileRun& run) { return std::tuple(run.file, run.begin); });
  return runs;
}

/// Divides runs into those that one request reads, as far as these are long enough.
std::vector<std::span<const TileRun>> requests_of(std::span<const TileRun> runs) {
  std::vector<std::span<const TileRun>> requests;
  for (std::size_t first = 0, next = 0; first < runs.size(); first = next) {
    for (next = first + 1; next < runs.size(); ++next) {
      const std::int64_t gap = runs[next].begin - runs[next - 1].end();
      const bool follows = runs[next].file == runs[first].file && 0 <= gap && gap <= kLongestGap;
      if (!follows || runs[next].end() - runs[first].begin > kLongestStream) break;
    }
    if (runs[next - 1].end() - runs[first].begin >= kLeastStream) requests.push_back(runs.subspan(first, next - first));
  }
  return requests;
}

/// Writes the tiles of one request while its bytes arrive, in parts as long as the buffer.
class Arriving {
 public:
  Arriving(const TileWork& work, TileWriter& writer, std::span<std::byte> buffer, std::span<const TileRun> runs)
      : work_(work), writer_(writer), buffer_(buffer), rest_(runs), position_(runs.front().begin) {}

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const TileRun& run = rest_.front();
      const bool is_gap = position_ < run.begin;
      const std::int64_t left = (is_gap ? run.begin : run.end()) - position_;
      const std::size_t count = std::min(bytes.size(), static_cast<std::size_t>(left));
      const std::size_t fits = is_gap ? count : std::min(count, buffer_.size() - held_);
      if (!is_gap) {
        std::memcpy(buffer_.data() + held_, bytes.data(), fits);
        held_ += fits;
      }
      position_ += static_cast<std::int64_t>(fits);
      bytes = bytes.subspan(fits);
      if (held_ == buffer_.size() || position_ == run.end()) write_held();
      if (position_ == run.end()) end_tile();
    }
  }
  /// The tile whose bytes arrive.
  std::int64_t tile() const { return rest_.front().tile; }

 private:
  void write_held() {
    const TileRun& run = rest_.front();
    const auto bytes = static_cast<std::int64_t>(held_);
    writer_.put(run.storage, run.offset + position_ - bytes - run.begin, buffer_.data(), bytes, record_);
    held_ = 0;
  }
  void end_tile() {
    writer_.flush();
    work_.progress.bytes_read.fetch_add(rest_.front().bytes, std::memory_order_relaxed);
    record_.tile = tile();
    if (work_.options.log != nullptr) work_.options.log->add(std::move(record_));
    record_ = {};
    if (rest_.size() > 1) rest_ = rest_.subspan(1);
  }

  const TileWork& work_;
  TileWriter& writer_;
  const std::span<std::byte> buffer_;
  std::size_t held_ = 0;  ///< Bytes of the tile in the buffer.
  std::span<const TileRun> rest_;
  std::int64_t position_;
  TileRecord record_;
};

void copy(const TileWork& work, TileWriter& writer, std::span<std::byte> buffer, std::span<const TileRun> runs) {
  Arriving arriving(work, writer, buffer, runs);
  try {
    work.progress.read_calls.fetch_add(1, std::memory_order_relaxed);
    work.reader.file(runs.front().file)
        ->stream(runs.front().begin, runs.back().end() - runs.front().begin,
                 [&](std::span<const std::byte> bytes) { arriving.take(bytes); });
  } catch (Error& error) {
    name_tensor(error, work, work.plan.unit_of(arriving.tile()));
    throw;
  }
}

}  // namespace

std::vector<std::uint8_t> stream_tiles(const TileWork& work, const TileRange& tiles) {
  std::vector<std::uint8_t> is_copied(static_cast<std::size_t>(tiles.end - tiles.begin));
  SourceStreams streams(work);
  const std::vector<TileRun> runs = find_runs(work, tiles, streams);
  const std::vector<std::span<const TileRun>> requests = requests_of(runs);
  const std::int64_t write_bytes = std::min(kMostHeld, work.pool.limit_bytes());
  for_each_index(requests.size(), streams.at_once(), work.options.stop, [&]() -> IndexWorker {
    return
        [&, writer = std::make_shared<TileWriter>(work), buffer = std::make_shared<Buffer>(work.pool)](std::size_t i) {
          copy(work, *writer, buffer->ensure(write_bytes), requests[i]);
          for (const TileRun& run : requests[i]) is_copied[static_cast<std::size_t>(run.tile - tiles.begin)] = 1;
        };
  });
  return is_copied;
}

}  // namespace shard
