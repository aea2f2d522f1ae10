#include "formats/deepspeed/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

namespace {

constexpr std::array<std::int64_t, 2> kAlignments{2, 1};  // In elements; the second one until DeepSpeed 0.5.2.

class ParamLayout {
 public:
  ParamLayout(Catalog& catalog, const std::vector<ParamGroup>& groups, const std::vector<OptimizerStates>& ranks)
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
      throw Error(ErrorCode::kCorruption, "the optimizer and the model's parameters have different numbers of groups")
          .in_file(catalog_.files[rank.file].path)
          .of_kind(FindingKind::kShapeMismatch)
          .expected(static_cast<std::int64_t>(groups_.size()))
          .found(static_cast<std::int64_t>(rank.masters.size()));
    }
  }

  void add(const ParamShape& param, std::vector<FlatPiece> pieces) {
    catalog_.arena->charge(Charge::kShards, std::ssize(pieces));
    laid_.params.push_back({param.name, param.shape, group_, std::move(pieces)});
  }

  /// Stages 1 and 2: the parameters of a group in a row, padded at the end, divided into one slice per rank.
  void lay_slices() {
    auto [sliced, alignment] = find_slices();
    laid_.alignments.push_back(alignment);
    for (const OptimizerStates& rank : ranks_) {
      for (const FlatState& state : rank.states) {
        if (state.groups[group_]) check_length(rank, state.name, *state.groups[group_], sliced);
      }
    }
    const ParamGroup& params = groups_[group_];
    for (std::size_t i = 0; i < params.size(); ++i) add(params[i], std::move(sliced.tensors[i]));
  }

  /// The slices that match the lengths of the master weights, and their alignment.
  std::pair<FlatLayout, std::int64_t> find_slices() const {
    for (const std::int64_t alignment : kAlignments) {
      FlatLayout sliced = slice(alignment);
      if (std::ranges::all_of(ranks_, [&](const OptimizerStates& rank) { return fits(rank, sliced); }))
        return {std::move(sliced), alignment};
    }
    FlatLayout usual = slice(kAlignments.front());
    for (const OptimizerStates& rank : ranks_) check_length(rank, "fp32", rank.masters[group_], usual);
    return {std::move(usual), kAlignments.front()};  // Not reached, because one of them did not match.
  }

  /// The slices of the group under one alignment. An impossible layout means that the parameters' shapes are wrong.
  FlatLayout slice(std::int64_t alignment) const {
    try {
      return lay_flat(numels_of(groups_[group_]), {}, FlatRule::zero12(std::ssize(ranks_), alignment));
    } catch (Error& error) {
      throw error.of_kind(FindingKind::kBadPickle);
    }
  }

  /// A rank's slice may be stored with or without the padding at the end of the buffer.
  bool fits(const OptimizerStates& rank, const FlatLayout& sliced) const {
    const std::int64_t length = rank.masters[group_].shape[0];
    return length == sliced.part_size() || length == sliced.used_by(rank.ranks.data_rank);
  }

  void check_length(const OptimizerStates& rank, std::string_view what, const TensorView& view,
                    const FlatLayout& sliced) const {
    const std::int64_t real = sliced.used_by(rank.ranks.data_rank), padded = sliced.part_size();
    const std::int64_t length = view.shape[0];
    if (length == padded || length == real) return;
    throw wrong_length(rank, what, real == padded ? fmt::format("{}", real) : fmt::format("{} or {}", real, padded),
                       length);
  }

  /// Stage 3: each parameter of n elements is divided into parts of ceil(n / ranks) elements. A rank's buffer has its
  /// parts of all parameters in a row, so a parameter is at the same offset on every rank.
  void lay_parts() {
    std::int64_t sum = 0;
    for (const ParamShape& param : groups_[group_]) {
      const std::int64_t numel = checked_numel(param.shape), count = std::ssize(ranks_);
      add(param, lay_parted(numel, count, sum));
      sum = checked_add(sum, parted_size(numel, count));
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

std::vector<std::int64_t> numels_of(const ParamGroup& params) {
  std::vector<std::int64_t> numels;
  for (const ParamShape& param : params) numels.push_back(checked_numel(param.shape));
  return numels;
}

FlatParams lay_out(Catalog& catalog, const std::vector<ParamGroup>& groups, const std::vector<OptimizerStates>& ranks) {
  return ParamLayout(catalog, groups, ranks).make();
}

}  // namespace shard::deepspeed
