#include "libshard/exec/clones.h"

#include <set>

#include "libshard/exec/line_pairs.h"

namespace shard {

namespace {

constexpr std::int64_t kBlock = 4096;  // The block size by which file systems clone.
constexpr std::int64_t kLeast = 1 << 20;

class Cloner {
 public:
  Cloner(const Catalog& source, const Reader& reader, const Catalog& target, std::span<FileWriter* const> files,
         LocalDisk& fs, Progress& progress)
      : source_(source), reader_(reader), target_(target), files_(files), fs_(fs), progress_(progress) {}

  /// Clones the part of bytes [begin, end) of a line that can be cloned.
  void clone(const Piece& from, const Piece& to, std::int64_t begin, std::int64_t end,
             std::vector<std::pair<std::int64_t, std::int64_t>>& done) {
    if (end - begin < kLeast || !source_.storages[from.storage].plain) return;
    const Storage& read = source_.storages[from.storage];
    const Storage& written = target_.storages[to.storage];
    const std::int64_t from_bytes = line_begin(read, from), to_bytes = line_begin(written, to);
    // A clone needs equal offsets within a block on both sides. The range is then rounded inward to whole blocks of the
    // target. The workers copy the rest.
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

 private:
  const Catalog& source_;
  const Reader& reader_;
  const Catalog& target_;
  std::span<FileWriter* const> files_;
  LocalDisk& fs_;
  Progress& progress_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refused_;
};

}  // namespace

Clones clone_runs(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                  const Catalog& target, std::span<FileWriter* const> files, LocalDisk& reflink_disk,
                  Progress& progress) {
  Clones clones;
  Cloner each(source, reader, target, files, reflink_disk, progress);
  for (const Unit& unit : plan.units) {
    if (!is_line_without_replicas(plan, unit) || unit.shape[0] < kLeast) continue;
    std::vector<std::pair<std::int64_t, std::int64_t>> done;
    for_each_line_pair(plan, unit, tiles,
                       [&](const Piece& from, const Piece& to, std::int64_t begin, std::int64_t end) {
                         each.clone(from, to, begin, end, done);
                       });
    if (!done.empty()) clones.ranges.emplace(unit.first_tile, std::move(done));
  }
  return clones;
}

}  // namespace shard
