#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "formats/dcp_hf/format.h"
#include "formats/dcp_hf/names.h"
#include "formats/dcp_hf/pieces.h"
#include "formats/dcp_hf/recorded.h"
#include "formats/format.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/hf_index/indexed_folder.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::dcp_hf {

namespace {

// The files of a source. Their names are checked against one another.

struct ShardFile {
  std::string path;   ///< The path to open; inside `folder` if that is set.
  std::string shown;  ///< The file's path in the catalog.
  ShardName name;
};

struct ShardFiles {
  std::string folder;               ///< Empty if the files were named one by one.
  std::vector<ShardFile> files;     ///< By rank, then by number.
  std::vector<std::string> others;  ///< Other names in the folder, except hidden ones.
  std::string fault;                ///< The first contradiction among the names; empty if there is none.
};

void note_first(const Error& error, std::string& fault) {
  if (fault.empty()) fault = error.file().empty() ? error.what() : fmt::format("{}: {}", error.file(), error.what());
}

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

bool is_data_name(std::string_view name) { return name.ends_with(kSafetensorsSuffix) && !name.starts_with('.'); }

void add_file(ShardFiles& files, const std::string& path, const std::string& shown, Findings& findings) {
  if (const auto name = parse_shard_name(base_name(path))) {
    files.files.push_back({path, shown, *name});
    return;
  }
  findings.report(Error(ErrorCode::kCorruption, "the name does not contain the rank that wrote the file")
                      .in_file(shown)
                      .expected("shard-RRRRR-model-IIIII-of-NNNNN.safetensors")
                      .found(base_name(path))
                      .hint("restore its original name, or move it out of the folder")
                      .of_kind(FindingKind::kRankMismatch));
}

ShardFiles from_folder(const SourceStore& store, const std::string& folder, Findings& findings) {
  ShardFiles files;
  files.folder = folder;
  for (const std::string& name : store.list(folder)) {
    if (is_data_name(name)) {
      add_file(files, name, name, findings);
    } else if (!name.starts_with('.')) {
      files.others.push_back(name);
    }
  }
  if (files.files.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder does not contain a shard")
        .in_file(folder)
        .of_kind(FindingKind::kMissingFile);
  }
  return files;
}

/// Reports shards that are in the folders of the named files but were not named. Without them a tensor may seem smaller
/// than it is.
void check_neighbours(const SourceStore& store, const std::vector<std::string>& paths, Findings& findings) {
  std::set<std::string> named, folders;
  bool are_shards = false;
  for (const std::string& path : paths) {
    named.insert(base_name(path));
    folders.insert(parent_path(path));
    are_shards = are_shards || base_name(path).starts_with("shard-");
  }
  const auto is_left_out = [&](const std::string& name) {
    const auto parsed = parse_shard_name(name);
    return parsed && (parsed->rank >= 0) == are_shards && !named.contains(name);
  };
  for (const std::string& folder : folders) {
    std::vector<std::string> left_out = store.list(folder);
    std::erase_if(left_out, [&](const std::string& name) { return !is_left_out(name); });
    if (left_out.empty()) continue;
    findings.report(
        Error(ErrorCode::kNotFound, fmt::format("{} of the checkpoint's shards {} not named: {}", left_out.size(),
                                                left_out.size() == 1 ? "is" : "are", first_names(left_out)))
            .in_file(join_path(folder, left_out[0]))
            .because("it is in the same folder as the named shards, and its tensors would be missing")
            .suggest(Remedy::kReadFolder, folder)
            .of_kind(FindingKind::kMissingFile));
  }
}

ShardFiles from_paths(const Source& source, Findings& findings) {
  ShardFiles files;
  const hf_index::DataFiles given = hf_index::files_as_given(source.paths);
  for (std::size_t i = 0; i < given.names.size(); ++i) add_file(files, given.names[i], given.shown[i], findings);
  check_neighbours(*source.store, source.paths, findings);
  return files;
}

void report_name(Findings& findings, const ShardFile& file, FindingKind kind, const std::string& what,
                 const std::string& expected, const std::string& found) {
  findings.report(
      Error(ErrorCode::kCorruption, what).in_file(file.shown).of_kind(kind).expected(expected).found(found));
}

/// \pre the files are sorted
void check_names(const ShardFiles& files, Findings& findings) {
  const ShardFile* last = nullptr;
  for (const ShardFile& file : files.files) {
    const auto& [rank, index, count] = file.name;
    const ShardFile& first = files.files.front();
    if (index < 1 || index > count) {
      report_name(findings, file, FindingKind::kIndexMismatch,
                  fmt::format("the name is that of file {} of {}", index, count), fmt::format("1 to {}", count),
                  std::to_string(index));
    }
    if (count != first.name.count) {
      report_name(findings, file, FindingKind::kMixedSave,
                  fmt::format("the name has -of-{}, that of {} has -of-{}", count, first.shown, first.name.count),
                  std::to_string(first.name.count), std::to_string(count));
    }
    if ((rank < 0) != (first.name.rank < 0)) {
      report_name(findings, file, FindingKind::kMixedSave,
                  fmt::format("{} is not a shard, and {} is one", first.shown, file.shown), "files of one save",
                  "files of two");
    }
    if (last != nullptr && last->name.rank == rank && last->name.index == index) {
      report_name(findings, file, FindingKind::kRankMismatch,
                  fmt::format("{} and {} are the same file of one rank", last->shown, file.shown), "each file once",
                  "a file twice");
    }
    last = &file;
  }
}

/// Checks that each number has a file, because each contains a tensor of some rank.
void check_numbers(const ShardFiles& files, Findings& findings) {
  std::vector<std::int64_t> numbers;
  for (const ShardFile& file : files.files) numbers.push_back(file.name.index);
  std::ranges::sort(numbers);
  const std::int64_t count = files.files.front().name.count;
  const NumberRuns missing = missing_from({{1, count}}, runs_of(numbers));
  if (missing.empty()) return;
  ShardName absent = files.files.front().name;
  absent.index = missing.front().first;
  findings.report(Error(ErrorCode::kNotFound, fmt::format("no file has number {} of {}", to_string(missing), count))
                      .in_file(join_path(files.folder.empty() ? "." : files.folder, to_string(absent)))
                      .expected(count)
                      .found(count - count_of(missing))
                      .hint("fetch the missing files")
                      .of_kind(FindingKind::kMissingFile));
}

/// Finds the files and checks that their names have one form and one count, that each file occurs once, and that each
/// number has a file of some rank.
/// \throws Error kNotFound    (or reports) the folder has no shards; there are shards beside the named ones; a number
///   has no file.
/// \throws Error kCorruption  (or reports) a name has a form that torch does not write, or contradicts the others.
ShardFiles find_shard_files(const Source& source, Findings& all) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const SourceStore& store = *source.store;
  std::string fault;
  DetailedFindings findings(all, [&fault](const Error& error) { note_first(error, fault); });
  ShardFiles files =
      is_one_folder(source) ? from_folder(store, source.paths.front(), findings) : from_paths(source, findings);
  std::ranges::sort(files.files, {}, [](const ShardFile& file) {
    return std::tuple(file.name.rank, file.name.index, std::string_view(file.shown));
  });
  if (!files.files.empty()) {  // Otherwise all names were invalid and reported.
    check_names(files, findings);
    check_numbers(files, findings);
  }
  files.fault = fault;
  return files;
}

using safetensors::MetadataMap;

class DcpHfReader final : public Reader {
 public:
  DcpHfReader(const Source& source, const OpenOptions& options)
      : store_(*source.store),
        findings_(*options.findings),
        threads_(options.threads),
        source_(find_shard_files(source, findings_)),
        files_([this](std::uint32_t index) { return open_file(source_.files[index].path); }),
        pieces_(catalog_) {
    catalog_.format = "dcp-hf";
    for (const ShardFile& file : source_.files) {
      catalog_.files.push_back({file.shown, 0, static_cast<int>(file.name.rank)});
      if (file.name.rank >= 0) ranks_.push_back(file.name.rank);
    }
    if (!ranks_.empty()) catalog_.world_size = ranks_.back() + 1;
    for (std::uint32_t i = 0; i < source_.files.size(); ++i) try_file(i);
    check_ranks(options.ranks_expected);
    note_others();
    refuse_unknown_shapes();
    DetailedFindings noted(findings_, [this](const Error& error) { note_first(error, fault_); });
    pieces_.build(noted);
    finish();
    warn_of_copies();
    refuse_unknown_shapes();
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}  // Does nothing: headers contain all offsets.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }

 private:
  std::unique_ptr<RandomReader> open_file(const std::string& path) const {
    return source_.folder.empty() ? store_.open(path) : store_.open_below(source_.folder, path);
  }

  /// Adds a file. A fault in it is a finding, and the file is skipped.
  void try_file(std::uint32_t index) {
    pieces_.begin_file(index);
    try {
      read_file(index);
    } catch (Error& error) {
      error.in_file(catalog_.files[index].path);
      if (error.code() == ErrorCode::kUnsupported) throw;
      note_first(error, fault_);
      pieces_.drop_file();
      findings_.report(error);
    }
  }

  void read_file(std::uint32_t index) {
    const std::shared_ptr<const RandomReader> opened = files_.get(index);
    File& file = catalog_.files[index];
    file.bytes = opened->size();
    file.identity = opened->identity();
    const safetensors::HeaderText header = safetensors::read_header_text(*opened, file.path, threads_, *catalog_.arena);
    MetadataMap metadata;
    CollectedFindings ends;
    safetensors::parse_header(
        header, file.path, file.bytes, metadata, [&](const safetensors::HeaderEntry& entry) { pieces_.add(entry); },
        findings_.goes_on() ? ends : throwing_findings());
    for (const Error& end : ends.all()) findings_.mend(fmt::format("{}: {}", file.path, reason_of(end)));
    take_sharding_info(metadata, file.path);
    check_version(metadata, file.path);
    const std::optional<Recorded> recorded = take_recorded(metadata, file.path);
    if (recorded) {
      safetensors::parse_dims_by_name(
          recorded->shapes, kShapesKey, file.path,
          [&](std::string_view name, std::span<const std::int64_t> shape) { pieces_.set_whole(name, shape); });
    }
    pieces_.end_file(recorded.has_value());
    check_same_save(recorded, index);
    safetensors::merge_metadata(catalog_, metadata, file.path);
  }

  void take_sharding_info(MetadataMap& metadata, const std::string& file) {
    const auto info = metadata.extract(safetensors::kShardingInfoKey);
    if (info.empty()) {
      throw Error(ErrorCode::kCorruption, "the header's __metadata__ has no DCP_SHARDING_INFO")
          .in_file(file)
          .because("only the header records the positions of the file's pieces")
          .of_kind(FindingKind::kBadHeader);
    }
    safetensors::parse_sharding_info(info.mapped(), file,
                                     [&](const safetensors::ShardingEntry& entry) { pieces_.set_sharding(entry); });
  }

  void check_version(MetadataMap& metadata, const std::string& file) {
    const auto version = metadata.extract(safetensors::kDcpVersionKey);
    if (version.empty()) return;
    if (!version.mapped().starts_with("1.")) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot read DCP_VERSION '{}'", version.mapped()))
          .in_file(file)
          .expected("1.0")
          .found(version.mapped());
    }
    catalog_.format_version = version.mapped();
  }

  /// Checks that each file written by shardctl records the same world size and ranks.
  void check_same_save(const std::optional<Recorded>& recorded, std::uint32_t index) {
    if (!first_read_) {
      first_read_ = index;
      recorded_ = recorded;
      return;
    }
    const std::string& first = catalog_.files[*first_read_].path;
    const auto differ = [&](FindingKind kind, const std::string& what, const std::string& expected,
                            const std::string& found) {
      throw Error(ErrorCode::kCorruption, fmt::format("{} {} here and {} in {}", what, found, expected, first))
          .of_kind(kind)
          .because("the files are of two saves")
          .expected(expected)
          .found(found);
    };
    if (recorded.has_value() != recorded_.has_value()) {
      const auto word = [](bool is_there) { return is_there ? "recorded" : "not recorded"; };
      differ(FindingKind::kMixedSave, "the world size is", word(recorded_.has_value()), word(recorded.has_value()));
    }
    if (!recorded) return;
    if (recorded->world_size != recorded_->world_size) {
      differ(FindingKind::kWorldSizeMismatch, "the world size is", std::to_string(recorded_->world_size),
             std::to_string(recorded->world_size));
    }
    if (recorded->ranks != recorded_->ranks) {
      differ(FindingKind::kMixedSave, "the ranks with a file are", to_string(recorded_->ranks),
             to_string(recorded->ranks));
    }
  }

  void check_ranks(std::optional<std::int64_t> expected) {
    const NumberRuns present = runs_of(ranks_);
    if (recorded_) {
      check_expected(expected, recorded_->world_size);
      check_present(recorded_->ranks, present, "each file records which ranks have one");
      report_strangers(missing_from(present, recorded_->ranks), to_string(recorded_->ranks));
    } else if (!ranks_.empty()) {
      const std::int64_t world_size = expected.value_or(ranks_.back() + 1);
      const NumberRuns all = {{0, std::max<std::int64_t>(world_size, 1) - 1}};
      check_present(all, present,
                    expected ? fmt::format("expected: {}", plural(*expected, "rank"))
                             : "torch numbers files by rank, and a rank with a higher number has one");
      report_strangers(missing_from(present, all), plural(world_size, "rank"));
      if (!expected) {
        catalog_.warnings.emplace_back("a missing last rank cannot be detected unless the number of ranks is given");
        findings_.warn(Error(ErrorCode::kCorruption, "a missing file of the last rank could not be noticed")
                           .of_kind(FindingKind::kWorldSizeMismatch)
                           .because("the files do not record how many ranks wrote them")
                           .suggest(Remedy::kStateRanks));
      }
    } else if (expected && *expected != 1) {
      check_expected(expected, 1);
    }
  }

  void check_expected(std::optional<std::int64_t> expected, std::int64_t found) {
    if (!expected || *expected == found) return;
    findings_.report(Error(ErrorCode::kCorruption,
                           fmt::format("the checkpoint is of {}, not of {}", plural(found, "rank"), *expected))
                         .in_file(catalog_.files.front().path)
                         .expected(*expected)
                         .found(found)
                         .of_kind(FindingKind::kWorldSizeMismatch));
  }

  void check_present(const NumberRuns& wanted, const NumberRuns& present, const std::string& why) {
    const NumberRuns missing = missing_from(wanted, present);
    if (missing.empty()) return;
    const std::vector<std::int64_t> few = first_few(missing);
    const ShardName absent{few.front(), 1, source_.files.front().name.count};
    Error error(ErrorCode::kNotFound, fmt::format("no file of rank {}", first_numbers(few, count_of(missing))));
    error.in_file(source_.folder.empty() ? to_string(absent) : join_path(source_.folder, to_string(absent)))
        .of_rank(static_cast<int>(few.front()))
        .because(why)
        .hint("fetch the missing files")
        .expected(count_of(wanted))
        .found(count_of(wanted) - count_of(missing))
        .of_kind(FindingKind::kMissingFile);
    note_first(error, fault_);
    findings_.report(error);
  }

  /// Reports ranks that have a file although the files exclude it.
  void report_strangers(const NumberRuns& strangers, const std::string& expected) {
    if (strangers.empty()) return;
    const std::int64_t rank = strangers.front().first;
    const auto file = std::ranges::find(source_.files, rank, [](const ShardFile& each) { return each.name.rank; });
    findings_.report(Error(ErrorCode::kCorruption, fmt::format("rank {} is not a rank of the checkpoint", rank))
                         .in_file(file->shown)
                         .of_rank(static_cast<int>(rank))
                         .expected(expected)
                         .found(fmt::format("rank {}", rank))
                         .of_kind(FindingKind::kWorldSizeMismatch));
  }

  /// For repair: if a file is missing, a tensor whose whole shape is not recorded would seem smaller than it is. Any
  /// contradiction may be a sign of a missing file, which was renamed or replaced by a file of a different save.
  void refuse_unknown_shapes() const {
    if (fault_.empty() || !findings_.goes_on() || recorded_) return;
    throw Error(ErrorCode::kCorruption, "cannot find the shapes of the tensors")
        .in_file(source_.folder)
        .because(fmt::format("shards by torch do not record whole shapes, so the last rows of a tensor may be lost: {}",
                             fault_))
        .of_kind(FindingKind::kMissingFile);
  }

  void note_others() {
    if (!source_.others.empty()) catalog_.warnings.push_back(hf_index::others_warning(source_.others));
  }

  void finish() {
    DetailedFindings detailed(findings_, [this](Error& error) { add_details(error); });
    validate_catalog(catalog_, detailed, threads_);
  }

  /// Warns of shards whose boxes are all in another shard, because torch stores each box once. If one is a copy,
  /// tensors without a recorded shape seem smaller than they are.
  void warn_of_copies() {
    std::vector<std::int64_t> boxes(catalog_.files.size());
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> shared;
    for (const Tensor& tensor : catalog_.tensors) {
      const Chunk* first = nullptr;
      for (const Chunk& chunk : catalog_.chunks_of(tensor)) {
        if (is_empty(chunk.sizes)) continue;
        const std::uint32_t file = catalog_.storage_of(chunk).file;
        ++boxes[file];
        const bool is_again = first != nullptr && first->offsets == chunk.offsets && first->sizes == chunk.sizes;
        if (is_again) ++shared[{catalog_.storage_of(*first).file, file}];
        if (!is_again) first = &chunk;
      }
    }
    std::erase_if(shared, [&](const auto& each) {
      return each.second < std::min(boxes[each.first.first], boxes[each.first.second]);
    });
    for (const auto& [pair, count] : shared) {
      const std::string &a = catalog_.files[pair.first].path, &b = catalog_.files[pair.second].path;
      const Error error = Error(ErrorCode::kCorruption, fmt::format("{} and {} contain the same boxes", a, b))
                              .in_file(b)
                              .of_kind(FindingKind::kRankMismatch)
                              .because("torch stores each box once, so one may be a copy of the other");
      note_first(error, fault_);
      findings_.warn(error);
      catalog_.warnings.push_back(fmt::format("{}: {}", error.what(), error.why()));
    }
  }

  void add_details(Error& error) {
    if (const Tensor* tensor = catalog_.find(error.tensor()); tensor != nullptr && tensor->chunk_count > 0) {
      const Chunk& chunk = catalog_.chunks[tensor->first_chunk];
      error.in_file(catalog_.file_of(chunk).path);
    }
    note_first(error, fault_);
    if (error.kind() != FindingKind::kGap) return;
    error
        .because(
            "torch's HuggingFaceStorageWriter stores one piece of a tensor per rank. If a rank had several, the others "
            "are "
            "lost. Otherwise a shard is missing or from a different save")
        .hint("look for a missing shard; if none is missing, save again with torch's FileSystemWriter");
  }

  const SourceStore& store_;
  Findings& findings_;
  const int threads_;
  ShardFiles source_;
  mutable OpenFiles files_;
  Catalog catalog_ = source_catalog();
  PieceTable pieces_;
  std::vector<std::int64_t> ranks_;  ///< The ranks that have files, in ascending order.
  std::optional<std::uint32_t> first_read_;
  std::string fault_ = source_.fault;  ///< The first contradiction; empty if there is none.
  std::optional<Recorded> recorded_;   ///< The record of the first file.
};

/// The files are valid safetensors files, but the safetensors reader would take pieces for whole tensors.
constexpr std::array<std::string_view, 1> kSupersedes{"safetensors"};

}  // namespace

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  std::vector<std::string> paths = source.paths;
  if (is_one_folder(source)) {
    const std::string folder = paths.front();
    paths = store.list(folder);
    if (std::ranges::any_of(paths, [](const auto& name) { return hf_index::is_index_name(name, kIndexSuffix); }))
      return false;
    std::erase_if(paths, [](const std::string& name) { return !is_data_name(name); });
    for (std::string& path : paths) path = join_path(folder, path);
  }
  return std::ranges::any_of(paths, [&](const std::string& path) {
    return store.is_file(path) && safetensors::names_sharding_info(*store.open(path));
  });
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<DcpHfReader>(source, options);
}

}  // namespace shard::dcp_hf

const shard::Format shard::kDcpHfFormat{
    .traits = {.name = "dcp-hf", .pieces = true, .single_box_items = true, .notes = true},
    .suffixes = {},
    .supersedes = dcp_hf::kSupersedes,
    .detect = dcp_hf::detect,
    .open = dcp_hf::open,
    .make_writer = dcp_hf::make_writer,
};
