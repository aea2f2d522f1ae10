#include "formats/torch_ranks/rank_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "formats/torch_ranks/rank_source.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/core/plural.h"
#include "libshard/io/paths.h"

namespace shard::torch_ranks {

namespace {

constexpr std::size_t kNamedRanks = 8;

class RankSettler {
 public:
  RankSettler(std::vector<RankFile>& files, const RankCheck& check, const Catalog& catalog, Findings& findings)
      : files_(files), check_(check), catalog_(catalog), findings_(findings) {}

  std::int64_t settle() {
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
    Error error(ErrorCode::kInvalidArgument, "cannot tell which rank wrote this file");
    error.in_file(shown(file))
        .because("its tensors do not record the rank, and the file names do not differ in exactly one number");
    if (check_.layout == nullptr) throw error.suggest(Remedy::kStateLayout);
    throw error.hint("state it in the layout document: files.path with its axes in braces");
  }

  std::int64_t layout_ranks() const { return check_.layout == nullptr ? 0 : mesh_size(check_.layout->mesh); }

  /// Process groups and documents say it; meshes say how many at least.
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
                           .because("files of different saves do not make one checkpoint")
                           .expected(world_size)
                           .found(file.world_size));
      return true;
    });
    return world_size;
  }

  void check_expected(std::int64_t world_size) const {
    if (!check_.ranks_expected || *check_.ranks_expected == world_size) return;
    findings_.report(Error(ErrorCode::kCorruption, fmt::format("the files are of a save of {} ranks", world_size))
                         .in_file(shown(files_.front()))
                         .of_kind(FindingKind::kWorldSizeMismatch)
                         .because(fmt::format("the caller expects {} ranks", *check_.ranks_expected))
                         .expected(*check_.ranks_expected)
                         .found(world_size));
  }

  /// A file whose rank is on another file's mesh has that same mesh; meshes of parts of the world are disjoint.
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

  /// Where the files are of several sets, as the names show: how to name one of them.
  std::string hint_of_sets() const {
    std::set<std::string> patterns;
    for (const std::string& name : check_.names) patterns.insert(pattern_of(base_name(name)));
    if (patterns.size() < 2) return {};
    std::string globs = *patterns.begin();
    std::ranges::replace(globs, '#', '*');
    return fmt::format("the folder has {} sets of files; read one set at a time, for example {}", patterns.size(),
                       globs);
  }

  /// Reports the first file too many, and drops all such.
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
            .hint("name the files of all ranks, or the folder that holds them"));
  }

  /// That the missing file should have; where the names do not tell, of one that is there.
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

}  // namespace

std::int64_t settle_ranks(std::vector<RankFile>& files, const RankCheck& check, const Catalog& catalog,
                          Findings& findings) {
  return RankSettler(files, check, catalog, findings).settle();
}

}  // namespace shard::torch_ranks
