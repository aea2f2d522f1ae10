#include "formats/deepspeed/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

namespace {

constexpr std::array<std::int64_t, 2> kAlignments{2, 1};  // Elements; the second until DeepSpeed 0.5.2.

class FlatLayout {
 public:
  FlatLayout(Catalog& catalog, const std::vector<ParamGroup>& groups, const std::vector<OptimizerStates>& ranks)
      : catalog_(catalog), groups_(groups), ranks_(ranks) {}

  FlatParams make() {
    check_counts();
    for (group_ = 0; group_ < groups_.size(); ++group_) {
      ranks_.front().is_parted() ? lay_parts() : lay_slices();
    }
    return std::move(laid_);
  }

 private:
  void check_counts() const {
    for (const OptimizerStates& rank : ranks_) {
      if (rank.masters.size() == groups_.size()) continue;
      throw Error(ErrorCode::kCorruption, "the optimizer has another number of groups than the model's parameters")
          .in_file(catalog_.files[rank.file].path)
          .of_kind(FindingKind::kShapeMismatch)
          .expected(static_cast<std::int64_t>(groups_.size()))
          .found(static_cast<std::int64_t>(rank.masters.size()));
    }
  }

  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const ParamShape& param : groups_[group_]) sum = checked_add(sum, checked_numel(param.shape));
    return sum;
  }

  void add(const ParamShape& param, std::vector<FlatRun> runs) {
    catalog_.arena->charge(Charge::kShards, static_cast<std::int64_t>(runs.size()));
    laid_.params.push_back({param.name, param.shape, group_, std::move(runs)});
  }

  void lay_slices() {
    const auto [sliced, alignment] = find_slices();
    laid_.alignments.push_back(alignment);
    for (const OptimizerStates& rank : ranks_) {
      for (const FlatState& state : rank.states) {
        if (state.groups[group_]) check_length(rank, state.name, *state.groups[group_], sliced);
      }
    }
    std::int64_t offset = 0;
    for (const ParamShape& param : groups_[group_]) {
      const std::int64_t numel = checked_numel(param.shape);
      add(param, sliced.runs(offset, numel));
      offset += numel;
    }
  }

  /// The slices that the masters' lengths fit, and their alignment.
  std::pair<SlicedGroup, std::int64_t> find_slices() const {
    const std::int64_t all = elements();
    std::optional<SlicedGroup> usual;
    for (const std::int64_t alignment : kAlignments) {
      const auto sliced = SlicedGroup::of(all, std::ssize(ranks_), alignment);
      if (!sliced)
        throw Error(ErrorCode::kCorruption, "the sizes of the parameters overflow").of_kind(FindingKind::kBadPickle);
      if (std::ranges::all_of(ranks_, [&](const OptimizerStates& rank) { return fits(rank, *sliced); }))
        return {*sliced, alignment};
      if (!usual) usual = sliced;
    }
    for (const OptimizerStates& rank : ranks_) check_length(rank, "fp32", rank.masters[group_], *usual);
    return {*usual, kAlignments.front()};  // Not reached: one of them did not fit.
  }

  bool fits(const OptimizerStates& rank, const SlicedGroup& sliced) const {
    const std::int64_t length = rank.masters[group_].shape[0];
    return length == sliced.slice || length == sliced.real(rank.ranks.data_rank);
  }

  void check_length(const OptimizerStates& rank, std::string_view what, const TensorView& view,
                    const SlicedGroup& sliced) const {
    const std::int64_t real = sliced.real(rank.ranks.data_rank), length = view.shape[0];
    if (length == sliced.slice || length == real) return;
    throw wrong_length(rank, what,
                       real == sliced.slice ? fmt::format("{}", real) : fmt::format("{} or {}", real, sliced.slice),
                       length);
  }

  void lay_parts() {
    std::int64_t sum = 0;
    for (const ParamShape& param : groups_[group_]) {
      const std::int64_t numel = checked_numel(param.shape), count = std::ssize(ranks_);
      add(param, runs_in_parts(numel, count, sum));
      sum = checked_add(sum, part_of(numel, count));
    }
    for (const OptimizerStates& rank : ranks_) {
      check_part(rank, "fp32", rank.masters[group_], sum);
      for (const FlatState& state : rank.states) {
        if (state.groups[group_]) check_part(rank, state.name, *state.groups[group_], sum);
      }
    }
  }

  void check_part(const OptimizerStates& rank, std::string_view what, const TensorView& view, std::int64_t sum) const {
    const std::int64_t length = view.shape[0];
    if (length == sum) return;
    if (length == 0) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot read '{}', whose elements were offloaded to disk", what))
          .in_file(catalog_.files[rank.file].path);
    }
    throw wrong_length(rank, what, fmt::format("{}", sum), length);
  }

  Error wrong_length(const OptimizerStates& rank, std::string_view what, const std::string& expected,
                     std::int64_t found) const {
    Error error(ErrorCode::kCorruption,
                fmt::format("the buffer '{}' of group {} does not have the length of its parameters", what, group_));
    error.in_file(catalog_.files[rank.file].path).of_kind(FindingKind::kShapeMismatch);
    return error.of_rank(static_cast<int>(rank.ranks.data_rank)).expected(expected).found(found);
  }

  Catalog& catalog_;
  const std::vector<ParamGroup>& groups_;
  const std::vector<OptimizerStates>& ranks_;
  std::size_t group_ = 0;
  FlatParams laid_;
};

}  // namespace

FlatParams lay_out(Catalog& catalog, const std::vector<ParamGroup>& groups, const std::vector<OptimizerStates>& ranks) {
  return FlatLayout(catalog, groups, ranks).make();
}

}  // namespace shard::deepspeed
