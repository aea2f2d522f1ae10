#include "formats/dcp/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/name_pattern.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::dcp {

FileNumbers file_numbers(std::string_view name) {
  static const NamePattern kItems("__{rank}_{number}.distcp");
  const auto numbers = kItems.read<2>(name);
  if (!numbers || numbers->front() > std::numeric_limits<int>::max()) return {};
  return {static_cast<int>(numbers->front()), numbers->back()};
}

int metadata_rank(std::string_view name) {
  static const NamePattern kOfRank("__{rank}.metadata");
  const auto rank = kOfRank.read<1>(name);
  return rank && rank->front() <= std::numeric_limits<int>::max() ? static_cast<int>(rank->front()) : -1;
}

namespace {

/// torch writes this file, and renames it as the last step of a save.
constexpr std::string_view kUnfinished = ".metadata.tmp";

[[noreturn]] void throw_no_metadata(const std::string& folder, const std::vector<std::string>& names) {
  Error error(ErrorCode::kNotFound, ".metadata is missing");
  error.in_file(join_path(folder, kMetadataName)).of_kind(FindingKind::kMissingFile);
  if (contains(names, kUnfinished)) {
    throw error.because(fmt::format("{} exists, so the save was interrupted before its last step", kUnfinished))
        .hint("if all items were written, rename that file to .metadata");
  }
  throw error.because("an unfinished save has no .metadata, and without it the tensors cannot be identified")
      .hint("if the save finished, also copy .metadata; copying often misses names that begin with a dot");
}

Error missing_rank(int rank, int highest, const std::string& folder) {
  return Error(ErrorCode::kNotFound, fmt::format("__{}.metadata is missing", rank))
      .in_file(join_path(folder, fmt::format("__{}.metadata", rank)))
      .of_rank(rank)
      .because(fmt::format("each rank wrote its own (use_collectives=False), and there are files of rank {}", highest))
      .hint("fetch it again")
      .of_kind(FindingKind::kMissingFile);
}

/// The metadata of ranks among the names in a folder, by rank.
std::vector<MetadataFile> rank_metadata(const std::vector<std::string>& names) {
  std::vector<MetadataFile> found;
  for (const std::string& name : names) {
    if (const int rank = metadata_rank(name); rank >= 0) found.push_back({name, rank});
  }
  std::ranges::stable_sort(found, {}, &MetadataFile::rank);
  return found;
}

/// \param found  the metadata of ranks among the names in the folder
void check_each_rank(const std::vector<MetadataFile>& found, const std::vector<std::string>& names,
                     const std::string& folder, Findings& findings) {
  int highest = found.back().rank, next = 0;
  for (const std::string& name : names) highest = std::max(highest, file_numbers(name).rank);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i > 0 && found[i].rank == found[i - 1].rank) {
      throw Error(ErrorCode::kCorruption,
                  fmt::format("{} and {} are both of rank {}", found[i - 1].name, found[i].name, found[i].rank))
          .in_file(found[i].name)
          .of_rank(found[i].rank)
          .of_kind(FindingKind::kRankMismatch);
    }
    if (found[i].rank != next) findings.report(missing_rank(next, highest, folder));
    next = found[i].rank + 1;
  }
  if (highest >= next) findings.report(missing_rank(next, highest, folder));
}

/// Indices of names, by rank and number.
std::vector<std::uint32_t> file_order(const std::vector<std::string>& names) {
  std::vector<std::uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const FileNumbers x = file_numbers(names[a]), y = file_numbers(names[b]);
    return std::tie(x.rank, x.number, names[a]) < std::tie(y.rank, y.number, names[b]);
  });
  return order;
}

/// The number of items in each file of the metadata.
std::vector<std::int64_t> items_in_files(const Metadata& metadata) {
  std::vector<std::int64_t> counts(metadata.files.size());
  for (const Item& item : metadata.items) ++counts[item.file];
  return counts;
}

void report_missing(const std::string& name, std::int64_t items, FileKind kind, const OpenOptions& options) {
  Error error(ErrorCode::kNotFound, fmt::format("{} is {}; .metadata expects {} {} in it", name,
                                                kind == FileKind::kAbsent ? "missing" : "not a regular file", items,
                                                items == 1 ? "chunk or object" : "chunks and objects"));
  error.in_file(name).because(".metadata names it").hint("fetch it again").of_kind(FindingKind::kMissingFile);
  if (const int rank = file_numbers(name).rank; rank >= 0) error.of_rank(rank);
  options.findings->report(error);
}

/// Compares the number of ranks with the number that the caller expects, if any.
void check_ranks(std::int64_t found, const OpenOptions& options) {
  if (!options.ranks_expected || *options.ranks_expected == found) return;
  const std::int64_t expected = *options.ranks_expected;
  if (found < expected) {
    Error error(ErrorCode::kNotFound, fmt::format("rank {} is missing: found files of {}, expected {}", found,
                                                  plural(found, "rank"), expected));
    error.expected(expected).found(found).because("the caller expects that many ranks to have written the checkpoint");
    if (found < kMaxRanks) error.of_rank(static_cast<int>(found));
    return options.findings->report(error.of_kind(FindingKind::kMissingFile));
  }
  options.findings->report(
      Error(ErrorCode::kCorruption, fmt::format("there are files of {}, not of {}", plural(found, "rank"), expected))
          .expected(expected)
          .found(found)
          .because("the caller expects that many ranks to have written the checkpoint")
          .of_kind(FindingKind::kWorldSizeMismatch));
}

struct ItemEnd {
  std::uint32_t file, item;
  std::int64_t offset;
  bool operator<(const ItemEnd& other) const { return std::tie(file, offset) < std::tie(other.file, other.offset); }
};

/// Items by file and offset. Saves usually list them in this order already.
std::vector<ItemEnd> items_in_order(const Metadata& metadata) {
  std::vector<ItemEnd> order;
  order.reserve(metadata.items.size());
  for (std::uint32_t i = 0; i < metadata.items.size(); ++i) {
    order.push_back({metadata.items[i].file, i, metadata.items[i].offset});
  }
  if (!std::ranges::is_sorted(order, [](const ItemEnd& a, const ItemEnd& b) { return a < b; })) {
    std::sort(order.begin(), order.end());
  }
  return order;
}

/// Written without a sum of offset and length, which could overflow.
bool is_inside(const Item& item, const File& file) {
  return item.length >= 0 && item.offset <= file.bytes && item.length <= file.bytes - item.offset;
}

Error past_the_end(const Item& item, const File& file) {
  return Error(ErrorCode::kCorruption,
               fmt::format("an item of {} bytes is at {}, but {} has {} bytes", std::max<std::int64_t>(0, item.length),
                           item.offset, file.path, file.bytes))
      .in_file(file.path)
      .found(file.bytes)
      .because("the file is truncated, or .metadata belongs to another save")
      .hint("fetch it again")
      .of_kind(FindingKind::kTruncated);
}

/// False for files of SerializationFormat.SAFETENSORS, whose recorded items overlap. The reader then names that format.
bool is_of_torch_save(const RandomReader& file, const Item& item) {
  std::byte head[2]{};
  if (item.zstd || item.length < 2) return true;
  file.read_at(item.offset, head);
  return head[0] == std::byte{'P'} && head[1] == std::byte{'K'};
}

}  // namespace

std::vector<MetadataFile> find_metadata(const SourceStore& store, const std::string& folder, Findings& findings,
                                        std::vector<std::string>& warnings) {
  const std::vector<std::string> names = store.list(folder);
  std::vector<MetadataFile> found = rank_metadata(names);
  if (contains(names, kMetadataName)) {
    if (!found.empty()) {
      warnings.push_back(fmt::format("ignored {} and other per-rank metadata because .metadata exists", found[0].name));
    }
    return {{std::string(kMetadataName), -1}};
  }
  if (found.empty()) throw_no_metadata(folder, names);
  check_each_rank(found, names, folder, findings);
  return found;
}

std::vector<MetadataChoice> metadata_choices(const SourceStore& store, const std::string& folder, Findings& findings) {
  std::vector<MetadataChoice> choices;
  const std::vector<std::string> names = store.list(folder);
  for (const std::string_view name : {kMetadataName, kUnfinished}) {
    if (contains(names, name)) choices.push_back({std::string(name), {{std::string(name)}}});
  }
  MetadataChoice of_ranks{"the metadata of ranks", rank_metadata(names)};
  if (of_ranks.files.empty()) return choices;
  if (choices.empty()) check_each_rank(of_ranks.files, names, folder, findings);
  choices.push_back(std::move(of_ranks));
  return choices;
}

std::vector<bool> add_files(const SourceStore& store, const std::string& folder, Metadata& metadata,
                            const OpenOptions& options, Catalog& catalog) {
  std::vector<bool> are_there(catalog.files.size(), true);
  std::vector<std::uint32_t> place(metadata.files.size());
  const std::vector<std::int64_t> items = items_in_files(metadata);
  HashSet<std::string> named;
  int last_rank = -1;
  for (const std::uint32_t old : file_order(metadata.files)) {
    place[old] = static_cast<std::uint32_t>(catalog.files.size());
    const std::string& name = metadata.files[old];
    const int rank = file_numbers(name).rank;
    last_rank = std::max(last_rank, rank);
    const FileStatus status = store.status(join_path(folder, name));
    const bool is_there = status.kind == FileKind::kFile;
    if (!is_there) report_missing(name, items[old], status.kind, options);
    catalog.files.push_back({name, is_there ? status.bytes : 0, rank, status.identity()});
    are_there.push_back(is_there);
    named.insert(name);
  }
  for (Item& item : metadata.items) item.file = place[item.file];
  FirstNames unused;
  for (const std::string& name : store.list(folder)) {
    if (!name.ends_with(".distcp") || named.contains(name)) continue;
    if (store.status(join_path(folder, name)).bytes == 0) {  // The file of a rank without any items.
      last_rank = std::max(last_rank, file_numbers(name).rank);
    } else {
      unused.add(name);
      options.findings->warn(Error(ErrorCode::kCorruption, ".metadata lists no item in this file")
                                 .in_file(name)
                                 .of_kind(FindingKind::kExtraFile)
                                 .because("it may be left over from an earlier save to this folder"));
    }
  }
  if (unused.count() > 0) {
    catalog.warnings.push_back(fmt::format(".metadata lists no item in these files: {}", unused.text()));
  }
  for (const File& file : catalog.files) last_rank = std::max(last_rank, file.rank);
  if (last_rank >= 0) catalog.world_size = last_rank + std::int64_t{1};
  check_ranks(catalog.world_size.value_or(0), options);
  return are_there;
}

void check_items(Metadata& metadata, const Catalog& catalog, const std::vector<bool>& are_there, Findings& findings,
                 const std::function<std::shared_ptr<const RandomReader>(std::uint32_t file)>& open) {
  const std::vector<ItemEnd> order = items_in_order(metadata);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Item& item = metadata.items[order[i].item];
    const File& file = catalog.files[item.file];
    const bool is_last = i + 1 == order.size() || order[i + 1].file != item.file;
    const std::int64_t next = is_last ? file.bytes : order[i + 1].offset;
    if (item.length < 0) item.length = std::max<std::int64_t>(0, next - item.offset);
    if (!are_there[item.file]) continue;  // A missing file has been reported.
    if (!is_inside(item, file)) {
      findings.report(past_the_end(item, file));
    } else if (!is_last && item.offset + item.length > next && is_of_torch_save(*open(item.file), item)) {
      findings.report(
          Error(ErrorCode::kCorruption, fmt::format("two items in {} overlap: one at [{}, {}), the other at {}",
                                                    file.path, item.offset, item.offset + item.length, next))
              .in_file(file.path)
              .because(".metadata was changed, or is from a different save")
              .of_kind(FindingKind::kOverlap));
    }
  }
}

}  // namespace shard::dcp
