#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/torch/foreign_classes.h"
#include "formats/torch/saved_reader.h"
#include "formats/torch_ranks/format.h"
#include "formats/torch_ranks/merge.h"
#include "formats/torch_ranks/rank_file.h"
#include "formats/torch_ranks/rank_source.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/tree.h"
#include "libshard/checkpoint/rank_groups.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/name_pattern.h"
#include "libshard/core/short_text.h"
#include "libshard/export/model_part.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/layout_document.h"

namespace shard::torch_ranks {

namespace {

// Checks when per-rank files are loaded that all ranks of one save are present, once each.

struct RankCheck {
  std::vector<std::string> names;      ///< The files' names as given, by RankFile::number.
  const MeshLayout* layout = nullptr;  ///< The sharding of plain slices, or null.
  std::optional<std::int64_t> ranks_expected;
  bool counts_files = false;  ///< The number of ranks is known only from the number of files.
};

constexpr std::size_t kNamedRanks = 8;

class RankAssigner {
 public:
  RankAssigner(std::vector<RankFile>& files, const RankCheck& check, const Catalog& catalog, Findings& findings)
      : files_(files), check_(check), catalog_(catalog), findings_(findings) {}

  std::int64_t assign() {
    warn_of_names();
    give_ranks();
    const std::int64_t world_size = find_world_size();
    check_expected(world_size);
    std::ranges::stable_sort(files_, {}, [](const RankFile& file) { return *file.rank; });
    check_meshes();
    check_each_once(world_size);
    check_all_there(world_size);
    return world_size;
  }

 private:
  const std::string& shown(const RankFile& file) const { return catalog_.files[file.number].path; }

  /// Warns about files whose names have the ranks of other files. Ranks are recorded in the files, so they are read
  /// correctly here, but a program that opens the file of its own rank gets the wrong one.
  void warn_of_names() const {
    const auto has_rank = [](const RankFile& file) { return file.rank.has_value(); };
    if (!std::ranges::all_of(files_, has_rank)) return;
    const std::optional<std::vector<std::int64_t>> numbers = differing_numbers(check_.names);
    if (!numbers || numbers->size() != files_.size()) return;
    std::vector<std::int64_t> named, ranks;
    for (const RankFile& file : files_) {
      named.push_back((*numbers)[file.number]);
      ranks.push_back(*file.rank);
    }
    if (!std::ranges::is_permutation(named, ranks)) return;  // The numbers mean something else.
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (named[i] == ranks[i]) continue;
      findings_.warn(Error(ErrorCode::kCorruption,
                           fmt::format("the file of rank {} has the name of rank {}'s file", ranks[i], named[i]))
                         .in_file(shown(files_[i]))
                         .of_kind(FindingKind::kRankMismatch)
                         .because("a program that loads the file of its own rank would refuse it")
                         .expected(fmt::format("rank {}", named[i]))
                         .found(fmt::format("rank {}", ranks[i])));
    }
  }

  void give_ranks() {
    if (std::ranges::all_of(files_, [](const RankFile& file) { return file.rank.has_value(); })) return;
    const std::optional<std::vector<std::int64_t>> numbers = differing_numbers(check_.names);
    for (RankFile& file : files_) {
      if (file.rank) continue;
      const std::string name = base_name(check_.names[file.number]);
      if (check_.layout != nullptr) file.rank = rank_by_template(check_.layout->file_path, check_.layout->mesh, name);
      if (!file.rank && numbers) file.rank = (*numbers)[file.number];
      if (!file.rank && files_.size() == 1 && layout_ranks() == 1) file.rank = 0;
      if (!file.rank) refuse_unknown(file);
    }
  }

  [[noreturn]] void refuse_unknown(const RankFile& file) const {
    Error error(ErrorCode::kInvalidArgument, "cannot find out which rank wrote this file");
    error.in_file(shown(file))
        .because("its tensors do not record the rank, and the file names do not differ in exactly one number");
    if (check_.layout == nullptr) throw error.suggest(Remedy::kStateLayout);
    throw error.hint("state it in the layout document: files.path with its axes in braces");
  }

  std::int64_t layout_ranks() const { return check_.layout == nullptr ? 0 : mesh_size(check_.layout->mesh); }

  /// The world size from process groups and documents; meshes give a lower bound.
  std::int64_t find_world_size() {
    std::int64_t world_size = check_.counts_files ? std::ssize(files_) : layout_ranks();
    const RankFile* teller = nullptr;
    for (const RankFile& file : files_) {
      if (file.is_exact && (teller == nullptr || !teller->is_exact)) {
        teller = &file;
        world_size = file.world_size;
      }
      if (!file.is_exact && (teller == nullptr || !teller->is_exact))
        world_size = std::max(world_size, file.world_size);
    }
    const std::string others = teller == nullptr ? "others" : shown(*teller);
    std::erase_if(files_, [&](const RankFile& file) {
      if (file.is_exact ? file.world_size == world_size : file.world_size <= world_size) return false;
      findings_.report(Error(ErrorCode::kCorruption, fmt::format("this file was saved by {}, but {} by {}",
                                                                 plural(file.world_size, "rank"), others, world_size))
                           .in_file(shown(file))
                           .of_kind(FindingKind::kWorldSizeMismatch)
                           .because("the files come from different saves")
                           .expected(world_size)
                           .found(file.world_size));
      return true;
    });
    return world_size;
  }

  void check_expected(std::int64_t world_size) const {
    if (!check_.ranks_expected || *check_.ranks_expected == world_size) return;
    findings_.report(Error(ErrorCode::kCorruption, fmt::format("the files come from {}", plural(world_size, "rank")))
                         .in_file(shown(files_.front()))
                         .of_kind(FindingKind::kWorldSizeMismatch)
                         .because(fmt::format("the caller expects {} ranks", *check_.ranks_expected))
                         .expected(*check_.ranks_expected)
                         .found(world_size));
  }

  /// Checks meshes: a file whose rank is on another file's mesh must have the same mesh; meshes of parts of the world
  /// must be disjoint.
  void check_meshes() const {
    const RankFile* first = nullptr;
    for (const RankFile& file : files_) {
      if (file.mesh == nullptr) continue;
      if (first == nullptr) first = &file;
      const Sharding &a = *first->mesh, &b = *file.mesh;
      if ((a.mesh == b.mesh && a.ranks == b.ranks) || !holds(a, *file.rank)) continue;
      findings_.report(Error(ErrorCode::kCorruption, "the file has a different device mesh")
                           .in_file(shown(file))
                           .of_kind(FindingKind::kWorldSizeMismatch)
                           .because(fmt::format("{} names this rank on its mesh", shown(*first)))
                           .expected(describe(a))
                           .found(describe(b)));
    }
  }

  static bool holds(const Sharding& sharding, std::int64_t rank) {
    if (sharding.ranks.empty()) return rank < mesh_size(sharding.mesh);
    return std::ranges::find(sharding.ranks, rank) != sharding.ranks.end();
  }

  static std::string describe(const Sharding& sharding) {
    std::vector<std::string> axes;
    for (const MeshAxis& axis : sharding.mesh) {
      axes.push_back(axis.name.empty() ? std::to_string(axis.size) : fmt::format("{}={}", axis.name, axis.size));
    }
    const auto first = std::span(sharding.ranks).first(std::min(kNamedRanks, sharding.ranks.size()));
    return fmt::format("a mesh of {}{}", fmt::join(axes, " x "),
                       first.empty() ? std::string() : fmt::format(" with ranks {}, ...", fmt::join(first, ", ")));
  }

  /// The hint to name one of several sets of files, if the names show several.
  std::string hint_of_sets() const {
    std::set<std::string> patterns;
    for (const std::string& name : check_.names) patterns.insert(without_numbers(base_name(name)));
    if (patterns.size() < 2) return {};
    std::string globs = *patterns.begin();
    std::ranges::replace(globs, '#', '*');
    return fmt::format("the folder has {} sets of files; read one set at a time, for example {}", patterns.size(),
                       globs);
  }

  /// Reports the first superfluous file, and drops all superfluous ones.
  void check_each_once(std::int64_t world_size) {
    const RankFile *again = nullptr, *before = nullptr;
    for (std::size_t i = 1; i < files_.size() && again == nullptr; ++i) {
      if (*files_[i].rank == *files_[i - 1].rank) before = &files_[i - 1], again = &files_[i];
    }
    const RankFile& last = files_.back();
    if (again == nullptr && *last.rank < world_size) return;
    const std::string why = again == nullptr
                                ? fmt::format("the file's rank is {}", *last.rank)
                                : fmt::format("it and {} are both of rank {}", shown(*before), *again->rank);
    const bool too_many = std::ssize(files_) > world_size;
    Error error(ErrorCode::kCorruption,
                too_many           ? fmt::format("there are {} files of a save of {} ranks", files_.size(), world_size)
                : again == nullptr ? fmt::format("rank {} of a save of {} ranks", *last.rank, world_size)
                                   : fmt::format("rank {} appears twice", *again->rank));
    error.in_file(shown(again == nullptr ? last : *again))
        .of_kind(too_many ? FindingKind::kExtraFile : FindingKind::kRankMismatch);
    error.because(why).hint(hint_of_sets());
    if (too_many) {
      error.expected(world_size).found(std::ssize(files_));
    } else {
      error.expected(fmt::format("each of the ranks 0 to {} once", world_size - 1))
          .found(fmt::format("rank {}", again == nullptr ? *last.rank : *again->rank));
    }
    findings_.report(error);
    const auto same_rank = [](const RankFile& a, const RankFile& b) { return *a.rank == *b.rank; };
    files_.erase(std::unique(files_.begin(), files_.end(), same_rank), files_.end());
    std::erase_if(files_, [world_size](const RankFile& file) { return *file.rank >= world_size; });
  }

  void check_all_there(std::int64_t world_size) const {
    const std::int64_t absent = world_size - std::ssize(files_);
    if (absent == 0) return;
    std::vector<std::int64_t> missing;
    std::int64_t next = 0;
    for (std::size_t i = 0; i <= files_.size() && missing.size() < kNamedRanks; ++i) {
      const std::int64_t rank = i < files_.size() ? *files_[i].rank : world_size;
      for (; next < rank && missing.size() < kNamedRanks; ++next) missing.push_back(next);
      next = rank + 1;
    }
    findings_.report(
        Error(ErrorCode::kNotFound,
              fmt::format("the {} of rank{} {} {} missing", absent == 1 ? "file" : "files", absent == 1 ? "" : "s",
                          first_numbers(missing, absent), absent == 1 ? "is" : "are"))
            .in_file(name_of(missing.front()))
            .of_kind(FindingKind::kMissingFile)
            .of_rank(static_cast<int>(missing.front()))
            .because(
                fmt::format("{} ranks wrote the checkpoint, but only {} files were found", world_size, files_.size()))
            .expected(world_size)
            .found(std::ssize(files_))
            .hint("name the files of all ranks, or their folder"));
  }

  /// Expected name of the missing file, or an existing file's name if names contain no rank.
  std::string name_of(std::int64_t rank) const {
    if (files_.empty()) return catalog_.files.front().path;
    std::vector<std::string> names;
    std::vector<std::int64_t> ranks;
    for (std::uint32_t number = 0; number < check_.names.size(); ++number) {
      const auto file = std::ranges::find(files_, number, &RankFile::number);
      if (file == files_.end()) continue;
      names.push_back(check_.names[number]);
      ranks.push_back(*file->rank);
    }
    const std::string name = name_of_rank(names, ranks, rank);
    return name.empty() ? shown(files_.front()) : name;
  }

  std::vector<RankFile>& files_;
  const RankCheck& check_;
  const Catalog& catalog_;
  Findings& findings_;
};

/// Gives every file its rank and sorts them by it. The rank comes from the content, or else from a layout's files.path,
/// or else from the only number that differs between the names. If the sink continues, `files` loses those that do not
/// fit the others.
/// Reports kNotFound    a rank is missing (kind missing_file).
/// Reports kCorruption  a rank occurs twice or is past the world; files are of saves of different sizes; there are more
/// files than ranks, or not the expected number (kinds rank_mismatch, world_size_mismatch, extra_file).
/// \returns the world size.
/// \throws Error kInvalidArgument  the ranks are unknown.
std::int64_t assign_ranks(std::vector<RankFile>& files, const RankCheck& check, const Catalog& catalog,
                          Findings& findings) {
  return RankAssigner(files, check, catalog, findings).assign();
}

constexpr std::int64_t kMaxLayoutBytes = 16 << 20;

class RanksReader final : public torch_save::SavedReader, public RankGroupSource {
 public:
  RanksReader(const Source& source, const OpenOptions& options)
      : RanksReader(
            source, options,
            options.rank_paths == nullptr ? find_rank_files(source) : RankSource{source.paths.front(), {}, {}}) {}

  const std::vector<std::optional<RankGroup>>& rank_groups() const override { return groups_; }

 private:
  RanksReader(const Source& source, const OpenOptions& options, RankSource files)
      : SavedReader(*source.store, {files.folder, true, options.findings}),
        findings_(*options.findings),
        threads_(options.threads),
        takes_foreign_(options.opaque_globals),
        source_(std::move(files)) {
    catalog_.format = "torch-ranks";
    if (options.rank_paths != nullptr) {
      read_named(*options.rank_paths);
      return;
    }
    if (source_.names.empty()) {
      throw Error(ErrorCode::kNotFound, "the folder contains no .pt, .pth or .bin files").in_file(source_.folder);
    }
    std::vector<RankFile> ranks;
    for (const std::string& name : source_.names) try_file(name, ranks);
    if (ranks.empty()) return;  // The findings contain the reason.
    catalog_.format_version = files_.version(ranks.front().number);
    std::optional<MeshLayout> read;
    const MeshLayout* layout = nullptr;
    const bool is_plain = std::ranges::none_of(ranks, &RankFile::is_sharded);
    const bool are_own = is_plain && (options.own_tensors || is_nothing_cut(ranks, options));
    if (is_plain && !are_own) {
      check_names(ranks);
      layout = find_layout(*source.store, options, ranks.front(), read);
    }
    const bool counts_files = are_own || (!is_plain && std::ranges::none_of(ranks, &RankFile::states_world));
    assign(ranks, {source_.names, layout, options.ranks_expected, counts_files});
    if (ranks.empty()) return;
    merge(catalog_, files_, ranks, layout, are_own, findings_);
    catalog_.rank_files = is_plain ? RankFiles::kPlain : kind_of(ranks, layout);
    finish();
    if (layout != nullptr) check_places();
  }

  void finish() {
    validate_catalog(catalog_, findings_, threads_);
    if (takes_foreign_) return;
    std::map<std::int32_t, std::string_view> first_files;  // By rank. They contain the objects.
    for (const File& file : catalog_.files) {
      if (file.rank >= 0) first_files.try_emplace(file.rank, file.path);
    }
    const auto file_of = [&](const Object& object) {
      return object.rank < 0 ? first_files.begin()->second : first_files.at(object.rank);
    };
    torch_save::refuse_foreign_classes(catalog_, 0, file_of, findings_);
  }

  /// True for files whose ranks are only in their names and that contain nothing that could be sharded: only objects,
  /// single numbers and integers (the states of random generators, data loaders, schedulers).
  bool is_nothing_cut(const std::vector<RankFile>& ranks, const OpenOptions& options) const {
    if (options.layout != nullptr || !source_.layout.empty() || !differing_numbers(source_.names)) return false;
    const auto may_be_cut = [](const torch_save::TensorView& view) {
      return checked_numel(view.shape) > 1 && (is_float(view.dtype) || is_complex(view.dtype));
    };
    return std::ranges::none_of(ranks,
                                [&](const RankFile& file) { return std::ranges::any_of(file.plain, may_be_cut); });
  }

  /// Checks files whose ranks are only in their names. A file with the content of a different rank is a finding; for
  /// repair, its slices are lost. Ranks that hold the same boxes may be copies of one another.
  void check_places() {
    for (const torch_save::ExchangedFile& each : exchanged_files()) {
      if (!hold_different_boxes(each.file, each.other)) continue;
      if (!findings_.goes_on()) findings_.report(each.error);
      lose_slices(each.file, each.error);
    }
    if (!findings_.goes_on()) return look_for_copies(findings_);
    std::vector<std::uint32_t> whole;
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      if (!catalog_.tensors[i].damaged && !is_lost(catalog_.tensors[i])) whole.push_back(i);
    }
    files_.locate_tensors(whole);
    for (const FilePair& pair : copied_files(catalog_, whole, bytes_of_)) {
      for (const std::uint32_t file : {pair.first, pair.second}) lose_slices(file, copied_file(catalog_, pair));
    }
  }

  bool is_lost(const Tensor& tensor) const {
    return std::ranges::any_of(catalog_.chunks_of(tensor), [this](const Chunk& chunk) {
      return files_.is_lost(catalog_.stored_of(chunk).storage);
    });
  }

  /// The box of a tensor in a file, or null.
  const Chunk* box_in(const Tensor& tensor, std::uint32_t file) const {
    const std::span<const Chunk> chunks = catalog_.chunks_of(tensor);
    const auto found =
        std::ranges::find(chunks, file, [this](const Chunk& chunk) { return catalog_.storage_of(chunk).file; });
    return found == chunks.end() ? nullptr : &*found;
  }

  bool hold_different_boxes(std::uint32_t a, std::uint32_t b) const {
    return std::ranges::any_of(catalog_.tensors, [&](const Tensor& tensor) {
      const Chunk *const in_a = box_in(tensor, a), *const in_b = box_in(tensor, b);
      return in_a != nullptr && in_b != nullptr && !(in_a->offsets == in_b->offsets);
    });
  }

  /// For repair. Tensors that are equal on all ranks are kept.
  void lose_slices(std::uint32_t file, const Error& why) {
    for (const Tensor& tensor : catalog_.tensors) {
      for (const Chunk& chunk : catalog_.chunks_of(tensor)) {
        const std::uint32_t storage = catalog_.stored_of(chunk).storage;
        if (tensor.chunk_count > 1 && catalog_.storages[storage].file == file) findings_.lose_storage(storage, why);
      }
    }
  }

  /// Reads files whose ranks `paths` gives. Objects beside the tensors come from a rank's first file.
  void read_named(const RankPaths& paths) {
    std::vector<RankFile> ranks;
    for (const RankPath& path : paths.files) {
      const bool is_first = ranks.empty() || *ranks.back().rank != path.rank;
      ranks.push_back(read_rank_file(catalog_, files_, path.path, {path.root, is_first}));
      if (ranks.back().is_sharded()) {
        throw Error(ErrorCode::kUnsupported,
                    "cannot read files by the map's names: the tensors themselves record their ranks")
            .in_file(catalog_.files[ranks.back().number].path);
      }
      ranks.back().rank = path.rank;
      catalog_.files[ranks.back().number].rank = static_cast<int>(path.rank);
    }
    catalog_.format_version = files_.version(ranks.front().number);
    catalog_.world_size = paths.ranks;
    merge(catalog_, files_, ranks, nullptr, true, findings_);
    catalog_.root = nullptr;  // The tree also contains the objects beside the tensors.
    catalog_.rank_files = RankFiles::kPlain;
    finish();
  }

  /// Reads a file. A fault in it is a finding, and the file is skipped.
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

  /// Plain files do not record ranks, so only their names can show that they belong together.
  void check_names(const std::vector<RankFile>& ranks) const {
    const std::set<std::string_view> expected = names_of(ranks.front());
    for (const RankFile& file : ranks) {
      if (names_of(file) == expected) continue;
      const std::string &first = catalog_.files[ranks.front().number].path, &other = catalog_.files[file.number].path;
      return findings_.report(
          Error(ErrorCode::kCorruption, fmt::format("{} and {} contain different names", first, other))
              .in_file(other)
              .of_kind(FindingKind::kMixedSave)
              .because("per-rank files contain the same names; parts of one checkpoint have an index beside them")
              .hint("if each file has a part of one model, convert each to a safetensors file in one folder, which "
                    "needs no index"));
    }
  }

  /// The given layout, or else the one beside the files. `file`: one of them.
  const MeshLayout* find_layout(const SourceStore& store, const OpenOptions& options, const RankFile& file,
                                std::optional<MeshLayout>& read) const {
    if (options.layout != nullptr) return options.layout;
    if (!source_.layout.empty()) {
      return &read.emplace(parse_own_layout(whole_text(*store.open(source_.layout), kMaxLayoutBytes)));
    }
    for (const RankLeaf& leaf : file.leaves) {
      if (const auto refusal = refused_flat_parameter(leaf.name, "merge"))
        throw Error(*refusal).in_file(catalog_.files[file.number].path);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "cannot merge plain tensors: the files do not record how they were sharded")
        .in_file(catalog_.files.front().path)
        .because(
            "the files contain no ShardedTensor or DTensor, and there is no layout.json; if each file has whole "
            "tensors, name only one")
        .suggest(Remedy::kStateLayout);
  }

  /// Parses a document that shardctl wrote, so a fault in it is damage.
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

  void assign(std::vector<RankFile>& ranks, const RankCheck& check) {
    catalog_.world_size = assign_ranks(ranks, check, catalog_, findings_);
    for (const RankFile& file : ranks) {
      catalog_.files[file.number].rank = static_cast<int>(*file.rank);
      note_group(file);
    }
  }

  void note_group(const RankFile& file) {
    groups_.resize(catalog_.files.size());
    RankGroup& group = groups_[file.number].emplace();
    group.rank = *file.rank;
    if (file.is_exact) group.world_size = file.world_size;
    if (!file.group || file.has_several_groups || file.group->local_rank < 0) return;
    group.local_rank = file.group->local_rank;
    group.local_world_size = file.group->local_world_size;
  }

  static RankFiles kind_of(const std::vector<RankFile>& ranks, const MeshLayout* layout) {
    if (layout != nullptr) return RankFiles::kPlain;
    const auto has_boxes = [](const RankFile& file) { return !file.sharded.empty() || !file.placed.empty(); };
    const bool has_sharded = std::ranges::any_of(ranks, has_boxes);
    return has_sharded ? RankFiles::kShardedTensor : RankFiles::kDTensor;
  }

  Findings& findings_;
  const int threads_;
  bool takes_foreign_;
  RankSource source_;
  std::vector<std::optional<RankGroup>> groups_;
};

/// A file with sharded tensors is also valid for torch, which cannot merge the ranks.
constexpr std::array<std::string_view, 1> kSupersedes{"torch"};

std::vector<std::string> likely_rank_files(const Source& source) { return find_rank_files(source).names; }

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<RanksReader>(source, options);
}

}  // namespace shard::torch_ranks

const shard::Format shard::kTorchRanksFormat{
    .traits = torch_ranks::traits_for({}),
    .suffixes = {},
    .supersedes = torch_ranks::kSupersedes,
    .is_guessed = true,
    .file_format = "torch",
    .map_container = MapContainer::kTorch,
    .objects_apart = false,
    .has_rank_kinds = true,
    .detect = torch_ranks::detect,
    .open = torch_ranks::open,
    .make_writer = torch_ranks::make_writer,
    .traits_for = torch_ranks::traits_for,
    .likely_rank_files = torch_ranks::likely_rank_files,
};
