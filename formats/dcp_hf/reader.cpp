#include "formats/dcp_hf/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "formats/dcp_hf/pieces.h"
#include "formats/dcp_hf/recorded.h"
#include "formats/dcp_hf/source_files.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/core/plural.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::dcp_hf {

namespace {

using safetensors::MetadataMap;

class DcpHfReader final : public Reader {
 public:
  DcpHfReader(const Source& source, const OpenOptions& options)
      : store_(*source.store),
        findings_(*options.findings),
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
    if (findings_.goes_on()) refuse_unknown_shapes();
    pieces_.build(findings_);
    finish();
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
      has_lost_file_ = true;
      pieces_.drop_file();
      findings_.report(error);
    }
  }

  void read_file(std::uint32_t index) {
    const std::shared_ptr<const RandomReader> opened = files_.get(index);
    File& file = catalog_.files[index];
    file.bytes = opened->size();
    file.identity = opened->identity();
    const safetensors::HeaderText header = safetensors::read_header_text(*opened, file.path, *catalog_.arena);
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
          .because("only it records where the file's pieces belong in their tensors")
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
      check_present(recorded_->ranks, present, "each file says which ranks have one");
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
    has_lost_file_ = true;
    const std::vector<std::int64_t> few = first_few(missing);
    const ShardName absent{few.front(), 1, source_.files.front().name.count};
    findings_.report(
        Error(ErrorCode::kNotFound, fmt::format("no file of rank {}", first_numbers(few, count_of(missing))))
            .in_file(source_.folder.empty() ? to_string(absent) : join_path(source_.folder, to_string(absent)))
            .of_rank(static_cast<int>(few.front()))
            .because(why)
            .hint("fetch the missing files")
            .expected(count_of(wanted))
            .found(count_of(wanted) - count_of(missing))
            .of_kind(FindingKind::kMissingFile));
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

  /// If a file is missing, a tensor whose whole shape is not recorded would seem smaller than it is.
  void refuse_unknown_shapes() const {
    if (!has_lost_file_ || recorded_) return;
    throw Error(ErrorCode::kCorruption, "cannot tell how large the tensors are")
        .in_file(source_.folder)
        .because(
            "a shard is missing or cannot be read, and the others do not state whole shapes: the last rows of a "
            "tensor may be what is lost")
        .of_kind(FindingKind::kMissingFile);
  }

  void note_others() {
    if (!source_.others.empty()) catalog_.warnings.push_back(hf_index::others_warning(source_.others));
  }

  void finish() {
    DetailedFindings detailed(findings_, [this](Error& error) { add_details(error); });
    validate_catalog(catalog_, detailed);
  }

  void add_details(Error& error) const {
    if (const Tensor* tensor = catalog_.find(error.tensor()); tensor != nullptr && tensor->chunk_count > 0) {
      const Chunk& chunk = catalog_.chunks[tensor->first_chunk];
      error.in_file(catalog_.file_of(chunk).path);
    }
    if (error.kind() != FindingKind::kGap) return;
    error
        .because(
            "torch's HuggingFaceStorageWriter keeps one piece of a tensor per rank: if a rank held several, it lost "
            "the "
            "others. Otherwise a shard is missing or of another save")
        .hint("look for a missing shard; if none is missing, save again with torch's FileSystemWriter");
  }

  const SourceStore& store_;
  Findings& findings_;
  ShardFiles source_;
  mutable OpenFiles files_;
  Catalog catalog_ = source_catalog();
  PieceTable pieces_;
  std::vector<std::int64_t> ranks_;  ///< The ranks that have files, in ascending order.
  std::optional<std::uint32_t> first_read_;
  bool has_lost_file_ = false;
  std::optional<Recorded> recorded_;  ///< The record of the first file.
};

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<DcpHfReader>(source, options);
}

}  // namespace shard::dcp_hf
