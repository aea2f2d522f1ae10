#include "libshard/exec/clones.h"

#include <algorithm>
#include <set>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard {

namespace {

constexpr std::int64_t kBlock = 4096;  // The block size by which file systems clone.
constexpr std::int64_t kLeast = 1 << 20;

class Cloner {
 public:
  Cloner(const Catalog& source, const Reader& reader, const Catalog& target, std::span<FileWriter* const> files,
         LocalDisk& fs, Progress& progress)
      : source_(source), reader_(reader), target_(target), files_(files), fs_(fs), progress_(progress) {}

  /// Clones the parts of bytes [low, high) of a line that can be cloned. Walks source and target pieces in step; each
  /// pair of overlapping pieces is one candidate.
  std::vector<std::pair<std::int64_t, std::int64_t>> clone(std::span<const Piece> from, std::span<const Piece> to,
                                                           std::int64_t low, std::int64_t high) {
    std::vector<std::pair<std::int64_t, std::int64_t>> done;
    for (std::size_t i = 0, j = 0; i < from.size() && j < to.size();) {
      const std::int64_t from_end = from[i].offsets[0] + from[i].sizes[0], to_end = to[j].offsets[0] + to[j].sizes[0];
      const std::int64_t begin = std::max({from[i].offsets[0], to[j].offsets[0], low});
      clone(from[i], to[j], begin, std::min({from_end, to_end, high}), done);
      if (from_end <= to_end) ++i;
      if (to_end <= from_end) ++j;
    }
    return done;
  }

 private:
  void clone(const Piece& from, const Piece& to, std::int64_t begin, std::int64_t end,
             std::vector<std::pair<std::int64_t, std::int64_t>>& done) {
    if (end - begin < kLeast || !source_.storages[from.storage].plain) return;
    const Storage& read = source_.storages[from.storage];
    const Storage& written = target_.storages[to.storage];
    const std::int64_t from_bytes = read.offset + from.first - from.offsets[0];  // The position in the file that the
                                                                                 // line's byte 0 would have.
    const std::int64_t to_bytes = written.offset + to.first - to.offsets[0];
    // A clone needs equal offsets within a block on both sides. The range is then rounded inward to whole blocks of the
    // target; the workers copy the rest.
    if ((from_bytes - to_bytes) % kBlock != 0 || refused_.contains({read.file, written.file})) return;
    begin = (to_bytes + begin + kBlock - 1) / kBlock * kBlock - to_bytes;
    end = (to_bytes + end) / kBlock * kBlock - to_bytes;
    const std::shared_ptr<const RandomReader> file = reader_.file(read.file);
    if (!fs_.clone_range(*file, from_bytes + begin, *files_[written.file], to_bytes + begin, end - begin)) {
      refused_.emplace(read.file, written.file);
      return;
    }
    progress_.bytes_cloned.fetch_add(end - begin, std::memory_order_relaxed);
    done.emplace_back(begin, end);
  }

  const Catalog& source_;
  const Reader& reader_;
  const Catalog& target_;
  std::span<FileWriter* const> files_;
  LocalDisk& fs_;
  Progress& progress_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refused_;
};

bool has_replicas(const Plan& plan, const Unit& unit) {
  std::int64_t end = 0;
  for (const Piece& piece : plan.to(unit)) {
    if (piece.offsets[0] != end) return true;
    end += piece.sizes[0];
  }
  return false;
}

}  // namespace

Clones clone_runs(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                  const Catalog& target, std::span<FileWriter* const> files, LocalDisk& reflink_disk,
                  Progress& progress) {
  Clones clones;
  Cloner each(source, reader, target, files, reflink_disk, progress);
  for (const Unit& unit : plan.units) {
    if (!unit.is_line || unit.shape[0] < kLeast || has_replicas(plan, unit)) continue;
    // The rank's tiles of this unit are a contiguous range of the line's bytes.
    const std::int64_t low = std::max<std::int64_t>(0, tiles.begin - unit.first_tile) * unit.tile[0];
    const std::int64_t tiles_before_end = std::min(unit.tile_count, tiles.end - unit.first_tile);
    const std::int64_t high = tiles_before_end >= unit.tile_count ? unit.shape[0] : tiles_before_end * unit.tile[0];
    if (low >= high) continue;
    auto done = each.clone(plan.from(unit), plan.to(unit), low, high);
    if (!done.empty()) clones.ranges.emplace(unit.first_tile, std::move(done));
  }
  return clones;
}

}  // namespace shard
