#include "libshard/exec/store_copies.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "libshard/core/crc_runs.h"
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
  std::uint32_t source, target;              ///< Files.
  std::uint32_t source_storage, to_storage;  ///< The storages of the bytes.

  bool continues(const PairRun& before) const {
    return source_storage == before.source_storage && source_offset == before.source_offset + before.bytes &&
           offset == before.offset + before.bytes;
  }
};

/// The checksums of a target whose source has them already, so that its bytes need not be read.
class KnownChecksums {
 public:
  /// \param needed  whether the target has checksums at all
  KnownChecksums(const Catalog& source, const Catalog& target, bool needed)
      : source_(source), target_(target), needed_(needed) {}

  /// Finds the storages of one file of the output that consist of whole storages of the source. \param pairs  of that
  /// file, by offset
  void find(std::span<const PairRun> pairs) {
    std::map<std::uint32_t, CrcRuns> found;
    for (std::size_t first = 0, next = 0; needed_ && first < pairs.size(); first = next) {
      std::int64_t bytes = pairs[first].bytes;
      for (next = first + 1; next < pairs.size() && is_continued(pairs[next - 1], pairs[next]); ++next) {
        bytes += pairs[next].bytes;
      }
      const PairRun& pair = pairs[first];
      const Storage& from = source_.storages[pair.source_storage];
      if (!from.crc32 || bytes != from.bytes) continue;
      found[pair.to_storage].add(pair.offset - target_.storages[pair.to_storage].offset, bytes, *from.crc32);
    }
    for (const auto& [storage, runs] : found) {
      if (runs.covers(target_.storages[storage].bytes)) known_[storage] = runs.runs().begin()->second.crc;
    }
  }

  /// Whether bytes of the storage must be read because its checksum is not known.
  bool needs_bytes(std::uint32_t storage) const { return needed_ && !known_.contains(storage); }
  std::optional<std::uint32_t> of(std::uint32_t storage) const {
    const auto found = known_.find(storage);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static bool is_continued(const PairRun& before, const PairRun& pair) {
    return pair.to_storage == before.to_storage && pair.continues(before);
  }

  const Catalog& source_;
  const Catalog& target_;
  const bool needed_;
  std::map<std::uint32_t, std::uint32_t> known_;
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
std::vector<SourceRun> joined_runs(std::span<const PairRun> pairs, CopyableSources& sources,
                                   const KnownChecksums& known) {
  std::vector<SourceRun> runs;
  SourceRun run;
  const auto end_run = [&] {
    if (run.bytes >= kLeastCopiedRun) runs.push_back(run);
  };
  for (const PairRun& pair : pairs) {
    const std::string_view name = sources.name_of(pair.source);
    const bool is_read = known.needs_bytes(pair.to_storage);
    const bool follows = run.bytes > 0 && run.source == name && run.offset + run.bytes == pair.offset &&
                         run.source_offset + run.bytes == pair.source_offset && run.is_read == is_read;
    if (follows) {
      run.bytes += pair.bytes;
      continue;
    }
    end_run();
    run = {name, pair.source_offset, pair.offset, pair.bytes, is_read};
  }
  end_run();
  return runs;
}

/// Adds the parts of the units that are in `copied`, and the checksums of their storages. Both are sorted by offset.
void add_copied(std::span<const PairRun> pairs, std::span<const ByteRange> copied, const KnownChecksums& known,
                Clones& clones, StorageChecksums* checksums) {
  std::size_t first = 0;
  for (const PairRun& pair : pairs) {
    const std::int64_t end = pair.offset + pair.bytes;
    while (first < copied.size() && copied[first].end <= pair.offset) ++first;
    for (std::size_t i = first; i < copied.size() && copied[i].begin < end; ++i) {
      const std::int64_t to_line = pair.in_line - pair.offset;
      if (checksums != nullptr) checksums->set_known(pair.to_storage, *known.of(pair.to_storage));
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
                             KnownChecksums& known, const std::stop_token& stop, const HandleRuns& handle) {
  CopyableSources sources(source, reader);
  std::vector<PairRun> pairs;
  for (const Unit& unit : plan.units) {
    if (!is_line_without_replicas(plan, unit)) continue;
    for_each_line_pair(
        plan, unit, tiles, [&](const Piece& from, const Piece& to, std::int64_t begin, std::int64_t end) {
          const Storage& read = source.storages[from.storage];
          const Storage& written = target.storages[to.storage];
          if (!read.plain || !takes(written.file) || sources.name_of(read.file).empty()) return;
          pairs.push_back({unit.first_tile, begin, line_begin(read, from) + begin, line_begin(written, to) + begin,
                           end - begin, read.file, written.file, from.storage, to.storage});
        });
  }
  std::ranges::sort(pairs, {}, [](const PairRun& pair) { return std::tuple(pair.target, pair.offset); });
  for (auto first = pairs.begin(); first != pairs.end() && !stop.stop_requested();) {
    const auto last = std::ranges::upper_bound(first, pairs.end(), first->target, {}, &PairRun::target);
    const std::span<const PairRun> of_file(first, last);
    known.find(of_file);
    const std::vector<SourceRun> runs = joined_runs(of_file, sources, known);
    if (!runs.empty()) handle(of_file, runs);
    first = last;
  }
}

}  // namespace

Clones copy_in_store(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                     const Catalog& target, std::span<FileWriter* const> files, StorageChecksums* checksums,
                     const std::stop_token& stop, Progress& progress) {
  std::vector<RunCopier*> copiers;
  for (FileWriter* const file : files) copiers.push_back(dynamic_cast<RunCopier*>(file));
  Clones clones;
  if (std::ranges::all_of(copiers, [](const RunCopier* each) { return each == nullptr; })) return clones;
  KnownChecksums known(source, target, checksums != nullptr);
  for_each_file_with_runs(
      plan, tiles, source, reader, target, [&](std::uint32_t file) { return copiers[file] != nullptr; }, known, stop,
      [&](std::span<const PairRun> pairs, std::span<const SourceRun> runs) {
        const std::vector<ByteRange> copied = copiers[pairs.front().target]->copy_runs(runs, stop);
        for (const ByteRange& range : copied) progress.bytes_cloned += range.end - range.begin;
        add_copied(pairs, copied, known, clones, checksums);
      });
  for (auto& [tile, ranges] : clones.ranges) std::ranges::sort(ranges);
  return clones;
}

std::int64_t bytes_to_copy_in_store(const Plan& plan, const Catalog& source, const Reader& reader,
                                    const Catalog& target, bool has_checksums, const OutputStore& output) {
  std::int64_t bytes = 0;
  KnownChecksums known(source, target, has_checksums);
  for_each_file_with_runs(
      plan, {0, plan.tile_count}, source, reader, target, [](std::uint32_t) { return true; }, known, {},
      [&](std::span<const PairRun> pairs, std::span<const SourceRun> runs) {
        for (const ByteRange& range : output.would_copy(target.files[pairs.front().target].bytes, runs)) {
          bytes += range.end - range.begin;
        }
      });
  return bytes;
}

}  // namespace shard
