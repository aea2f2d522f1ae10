#include "formats/torch_ranks/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "formats/parts/pickle/scan.h"
#include "formats/torch/foreign_classes.h"
#include "formats/torch/saved_reader.h"
#include "formats/torch/source_files.h"
#include "formats/torch_ranks/merge.h"
#include "formats/torch_ranks/rank_checks.h"
#include "formats/torch_ranks/rank_source.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_ranks {

namespace {

constexpr std::int64_t kMaxLayoutBytes = 16 << 20;

class RanksReader final : public torch_save::SavedReader {
 public:
  RanksReader(const Source& source, const OpenOptions& options)
      : RanksReader(
            source, options,
            options.rank_paths == nullptr ? find_rank_files(source) : RankSource{source.paths.front(), {}, {}}) {}

 private:
  RanksReader(const Source& source, const OpenOptions& options, RankSource files)
      : SavedReader(*source.store, {files.folder, true, options.findings}),
        findings_(*options.findings),
        takes_foreign_(options.opaque_globals),
        source_(std::move(files)) {
    catalog_.format = "torch-ranks";
    if (options.rank_paths != nullptr) {
      read_named(*options.rank_paths);
      return;
    }
    if (source_.names.empty()) {
      throw Error(ErrorCode::kNotFound, "the folder holds no .pt, .pth or .bin files").in_file(source_.folder);
    }
    std::vector<RankFile> ranks;
    for (const std::string& name : source_.names) try_file(name, ranks);
    if (ranks.empty()) return;  // The findings say why.
    catalog_.format_version = files_.version(ranks.front().number);
    std::optional<MeshLayout> read;
    const MeshLayout* layout = nullptr;
    const bool is_plain = std::ranges::none_of(ranks, &RankFile::is_sharded);
    const bool are_own = is_plain && (options.own_tensors || is_nothing_cut(ranks, options));
    if (is_plain && !are_own) {
      check_names(ranks);
      layout = find_layout(*source.store, options, read);
    }
    const bool counts_files = are_own || (!is_plain && std::ranges::none_of(ranks, &RankFile::states_world));
    settle(ranks, {source_.names, layout, options.ranks_expected, counts_files});
    if (ranks.empty()) return;
    merge(catalog_, files_, ranks, layout, are_own, findings_);
    catalog_.rank_files = is_plain ? RankFiles::kPlain : kind_of(ranks, layout);
    finish();
  }

  void finish() {
    validate_catalog(catalog_, findings_);
    if (!takes_foreign_) torch_save::refuse_foreign_classes(catalog_, 0, catalog_.files.front().path, findings_);
  }

  /// True of files that only their names number and that hold nothing of which ranks may have parts: objects, single
  /// numbers and integers (the states of random generators, data loaders, schedulers).
  bool is_nothing_cut(const std::vector<RankFile>& ranks, const OpenOptions& options) const {
    if (options.layout != nullptr || !source_.layout.empty() || !differing_numbers(source_.names)) return false;
    const auto may_be_cut = [](const torch_save::TensorView& view) {
      return checked_numel(view.shape) > 1 && (is_float(view.dtype) || is_complex(view.dtype));
    };
    return std::ranges::none_of(ranks,
                                [&](const RankFile& file) { return std::ranges::any_of(file.plain, may_be_cut); });
  }

  /// Ranks are what `paths` says. What lies beside the tensors is that of a rank's first file.
  void read_named(const RankPaths& paths) {
    std::vector<RankFile> ranks;
    for (const RankPath& path : paths.files) {
      const bool is_first = ranks.empty() || *ranks.back().rank != path.rank;
      ranks.push_back(read_rank_file(catalog_, files_, path.path, {path.root, is_first}));
      if (ranks.back().is_sharded()) {
        throw Error(ErrorCode::kUnsupported,
                    "cannot read files by the map's names: their tensors state ranks themselves")
            .in_file(catalog_.files[ranks.back().number].path);
      }
      ranks.back().rank = path.rank;
      catalog_.files[ranks.back().number].rank = static_cast<int>(path.rank);
    }
    catalog_.format_version = files_.version(ranks.front().number);
    catalog_.world_size = paths.ranks;
    merge(catalog_, files_, ranks, nullptr, true, findings_);
    catalog_.root = nullptr;  // It has what lies beside the tensors, too.
    catalog_.rank_files = RankFiles::kPlain;
    finish();
  }

  /// What is wrong with a file is a finding, and then the file is left out.
  void try_file(const std::string& name, std::vector<RankFile>& ranks) {
    try {
      ranks.push_back(read_rank_file(catalog_, files_, name, {}, ranks.empty() ? nullptr : &ranks.front()));
    } catch (const Error& error) {
      findings_.report(error);
    }
  }

  static std::set<std::string_view> names_of(const RankFile& file) {
    std::set<std::string_view> names;
    for (const RankLeaf& leaf : file.leaves) names.insert(leaf.name);
    return names;
  }

  /// Plain files say nothing of ranks: only their names can show that they belong together.
  void check_names(const std::vector<RankFile>& ranks) const {
    const std::set<std::string_view> expected = names_of(ranks.front());
    for (const RankFile& file : ranks) {
      if (names_of(file) == expected) continue;
      const std::string &first = catalog_.files[ranks.front().number].path, &other = catalog_.files[file.number].path;
      return findings_.report(
          Error(ErrorCode::kCorruption, fmt::format("{} and {} hold different names", first, other))
              .in_file(other)
              .of_kind(FindingKind::kMixedSave)
              .because("files of ranks hold the same names, parts of one checkpoint have an index beside them"));
    }
  }

  /// The one that was given, else the one that lies beside the files.
  const MeshLayout* find_layout(const SourceStore& store, const OpenOptions& options,
                                std::optional<MeshLayout>& read) const {
    if (options.layout != nullptr) return options.layout;
    if (!source_.layout.empty()) {
      const std::vector<std::byte> text = read_whole(*store.open(source_.layout), kMaxLayoutBytes);
      return &read.emplace(parse_own_layout({reinterpret_cast<const char*>(text.data()), text.size()}));
    }
    throw Error(ErrorCode::kInvalidArgument,
                "cannot merge plain tensors: the files do not record how they were sharded")
        .in_file(catalog_.files.front().path)
        .because("the files contain no ShardedTensor or DTensor, and there is no layout.json")
        .suggest(Remedy::kStateLayout);
  }

  /// A document that nobody wrote by hand: what is wrong with it is damage.
  MeshLayout parse_own_layout(std::string_view text) const {
    try {
      return parse_layout_document(text, source_.layout);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      throw Error(ErrorCode::kCorruption, error.what())
          .in_file(source_.layout)
          .of_kind(FindingKind::kBadHeader)
          .because(error.why())
          .suggest(Remedy::kStateLayout);
    }
  }

  void settle(std::vector<RankFile>& ranks, const RankCheck& check) {
    catalog_.world_size = settle_ranks(ranks, check, catalog_, findings_);
    for (const RankFile& file : ranks) catalog_.files[file.number].rank = static_cast<int>(*file.rank);
  }

  static RankFiles kind_of(const std::vector<RankFile>& ranks, const MeshLayout* layout) {
    if (layout != nullptr) return RankFiles::kPlain;
    const auto has_boxes = [](const RankFile& file) { return !file.sharded.empty() || !file.placed.empty(); };
    const bool has_sharded = std::ranges::any_of(ranks, has_boxes);
    return has_sharded ? RankFiles::kShardedTensor : RankFiles::kDTensor;
  }

  Findings& findings_;
  bool takes_foreign_;
  RankSource source_;
};

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<RanksReader>(source, options);
}

}  // namespace shard::torch_ranks
