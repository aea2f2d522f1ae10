#include "libshard/exec/store_copies.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "libshard/exec/line_pairs.h"
#include "libshard/io/run_copies.h"
#include "libshard/io/url_path.h"

namespace shard {

namespace {

/// Bytes of one unit that are a run in a source file and in a file of the output.
struct PairRun {
  std::int64_t first_tile;  ///< The unit's, which names it.
  std::int64_t in_line;     ///< The number of its first byte in the unit's line.
  std::int64_t source_offset, offset, bytes;
  std::uint32_t source, target;  ///< Files.
};

/// The names of the source files whose store may copy them; empty for others.
class CopyableSources {
 public:
  CopyableSources(const Catalog& source, const Reader& reader) : reader_(reader), names_(source.files.size()) {}

  const std::string& name_of(std::uint32_t file) {
    std::optional<std::string>& name = names_[file];
    if (name) return *name;
    const std::shared_ptr<const RandomReader> opened = reader_.file(file);
    const bool is_in_store = is_url(opened->name()) && opened->identity().is_known();
    return name.emplace(is_in_store ? opened->name() : std::string());
  }

 private:
  const Reader& reader_;
  std::vector<std::optional<std::string>> names_;
};

/// The runs of one file of the output that are long enough to be offered. \param pairs  of that file, by offset
std::vector<SourceRun> joined_runs(std::span<const PairRun> pairs, CopyableSources& sources) {
  std::vector<SourceRun> runs;
  SourceRun run;
  const auto end_run = [&] {
    if (run.bytes >= kLeastCopiedRun) runs.push_back(run);
  };
  for (const PairRun& pair : pairs) {
    const std::string_view name = sources.name_of(pair.source);
    const bool follows = run.bytes > 0 && run.source == name && run.offset + run.bytes == pair.offset &&
                         run.source_offset + run.bytes == pair.source_offset;
    if (follows) {
      run.bytes += pair.bytes;
      continue;
    }
    end_run();
    run = {name, pair.source_offset, pair.offset, pair.bytes};
  }
  end_run();
  return runs;
}

/// Adds the parts of the units that are in `copied`. Both are sorted by offset.
void add_copied(std::span<const PairRun> pairs, std::span<const ByteRange> copied, Clones& clones) {
  std::size_t first = 0;
  for (const PairRun& pair : pairs) {
    const std::int64_t end = pair.offset + pair.bytes;
    while (first < copied.size() && copied[first].end <= pair.offset) ++first;
    for (std::size_t i = first; i < copied.size() && copied[i].begin < end; ++i) {
      const std::int64_t to_line = pair.in_line - pair.offset;
      clones.ranges[pair.first_tile].emplace_back(std::max(copied[i].begin, pair.offset) + to_line,
                                                  std::min(copied[i].end, end) + to_line);
    }
  }
}

/// Receives the runs of one file of the output, and the pairs in them, both by offset.
using HandleRuns = std::function<void(std::span<const PairRun> pairs, std::span<const SourceRun> runs)>;

/// Calls `handle` for each file of the output that `takes` and that has runs, until a stop is requested.
void for_each_file_with_runs(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                             const Catalog& target, const std::function<bool(std::uint32_t file)>& takes,
                             const std::stop_token& stop, const HandleRuns& handle) {
  CopyableSources sources(source, reader);
  std::vector<PairRun> pairs;
  for (const Unit& unit : plan.units) {
    if (!is_line_without_replicas(plan, unit)) continue;
    for_each_line_pair(plan, unit, tiles,
                       [&](const Piece& from, const Piece& to, std::int64_t begin, std::int64_t end) {
                         const Storage& read = source.storages[from.storage];
                         const Storage& written = target.storages[to.storage];
                         if (!read.plain || !takes(written.file) || sources.name_of(read.file).empty()) return;
                         pairs.push_back({unit.first_tile, begin, line_begin(read, from) + begin,
                                          line_begin(written, to) + begin, end - begin, read.file, written.file});
                       });
  }
  std::ranges::sort(pairs, {}, [](const PairRun& pair) { return std::tuple(pair.target, pair.offset); });
  for (auto first = pairs.begin(); first != pairs.end() && !stop.stop_requested();) {
    const auto last = std::ranges::upper_bound(first, pairs.end(), first->target, {}, &PairRun::target);
    const std::span<const PairRun> of_file(first, last);
    const std::vector<SourceRun> runs = joined_runs(of_file, sources);
    if (!runs.empty()) handle(of_file, runs);
    first = last;
  }
}

}  // namespace

Clones copy_in_store(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                     const Catalog& target, std::span<FileWriter* const> files, const std::stop_token& stop,
                     Progress& progress) {
  std::vector<RunCopier*> copiers;
  for (FileWriter* const file : files) copiers.push_back(dynamic_cast<RunCopier*>(file));
  Clones clones;
  if (std::ranges::all_of(copiers, [](const RunCopier* each) { return each == nullptr; })) return clones;
  for_each_file_with_runs(
      plan, tiles, source, reader, target, [&](std::uint32_t file) { return copiers[file] != nullptr; }, stop,
      [&](std::span<const PairRun> pairs, std::span<const SourceRun> runs) {
        const std::vector<ByteRange> copied = copiers[pairs.front().target]->copy_runs(runs, stop);
        for (const ByteRange& range : copied) progress.bytes_cloned += range.end - range.begin;
        add_copied(pairs, copied, clones);
      });
  for (auto& [tile, ranges] : clones.ranges) std::ranges::sort(ranges);
  return clones;
}

std::int64_t bytes_to_copy_in_store(const Plan& plan, const Catalog& source, const Reader& reader,
                                    const Catalog& target, const OutputStore& output) {
  std::int64_t bytes = 0;
  for_each_file_with_runs(
      plan, {0, plan.tile_count}, source, reader, target, [](std::uint32_t) { return true; }, {},
      [&](std::span<const PairRun> pairs, std::span<const SourceRun> runs) {
        for (const ByteRange& range : output.would_copy(target.files[pairs.front().target].bytes, runs)) {
          bytes += range.end - range.begin;
        }
      });
  return bytes;
}

}  // namespace shard
