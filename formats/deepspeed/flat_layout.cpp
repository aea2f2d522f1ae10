#include "formats/deepspeed/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parse_number.h"

namespace shard::deepspeed {

namespace {

constexpr std::array<std::int64_t, 2> kAlignments{2, 1};  // In elements; the second one until DeepSpeed 0.5.2.
constexpr std::array<std::int64_t, 5> kParamAligns{1, 2, 4, 8, 16};  // In elements; 16 bytes except for the first one.

/// The unused elements behind each parameter if each begins at a multiple of `align`. The last one has none.
std::vector<std::int64_t> paddings_of(const std::vector<std::int64_t>& numels, std::int64_t align) {
  std::vector<std::int64_t> paddings;
  std::int64_t used = 0;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    used = checked_add(used, numels[i]);
    const std::int64_t end = i + 1 == numels.size() ? used : checked_mul(ceil_div(used, align), align);
    paddings.push_back(end - used);
    used = end;
  }
  return paddings;
}

/// A name around the number of an expert, as DeepSpeed's MoE layers form it.
struct ExpertName {
  std::string_view before, after;
  std::int64_t number = 0;
};

std::optional<ExpertName> read_expert_name(std::string_view name) {
  constexpr std::string_view kExperts = "deepspeed_moe.experts.deepspeed_experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kExperts.size());
  const std::size_t end = std::min(rest.find('.'), rest.size());
  const std::optional<std::int64_t> number = parse_natural(rest.substr(0, end));
  if (!number) return std::nullopt;
  return ExpertName{name.substr(0, at + kExperts.size()), rest.substr(end), *number};
}

/// The ranks that share a group of experts, and the teams that have different ones.
struct Teams {
  std::int64_t count = 1, size = 1;
  bool are_consecutive = false;  ///< The ranks of a team.

  std::int64_t rank_of(std::int64_t team, std::int64_t member) const {
    return are_consecutive ? team * size + member : member * count + team;
  }
  std::int64_t member(std::int64_t rank) const { return are_consecutive ? rank % size : rank / count; }
};

class ParamLayout {
 public:
  ParamLayout(Catalog& catalog, const std::vector<ParamGroup>& groups, const Save& save)
      : catalog_(catalog),
        groups_(groups),
        ranks_(save.optimizers),
        are_teams_consecutive_(save.models.front().data_before_experts) {
    count_experts(save);
  }

  FlatParams make() {
    check_counts();
    check_paddings();
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

  void check_paddings() const {
    const std::vector<std::vector<std::int64_t>>& first = ranks_.front().paddings;
    if (!first.empty() && first.size() != groups_.size()) throw wrong_paddings(ranks_.front());
    for (const OptimizerStates& rank : ranks_) {
      if (rank.paddings != first) throw wrong_paddings(rank);
    }
  }

  /// Counts the experts of each MoE layer, by the names in their files.
  void count_experts(const Save& save) {
    for (const ModelStates& part : save.parts) {
      for (const auto& [name, view] : part.module.entries()) {
        const std::optional<ExpertName> expert = read_expert_name(name);
        if (!expert) continue;
        std::int64_t& count = experts_[expert->before];
        count = std::max(count, checked_add(expert->number, 1));
      }
    }
  }

  void add(std::string_view name, Dims shape, std::vector<FlatPiece> pieces) {
    catalog_.arena->charge(Charge::kShards, std::ssize(pieces));
    laid_.params.push_back({name, shape, group_, std::move(pieces)});
  }

  /// The teams of the group: one, unless it consists of experts.
  Teams teams_of_group() const {
    const std::int64_t all = std::ssize(ranks_);
    const std::vector<std::int64_t>& sharing = ranks_.front().sharing;
    if (sharing.empty()) return {1, all};
    if (sharing.size() != groups_.size() || all % sharing[group_] != 0) {
      throw Error(ErrorCode::kCorruption,
                  fmt::format("partition_count of group {} does not fit the optimizer's ranks and groups", group_))
          .in_file(catalog_.files[ranks_.front().file].path)
          .of_kind(FindingKind::kWorldSizeMismatch);
    }
    return {all / sharing[group_], sharing[group_], are_teams_consecutive_};
  }

  /// The parameter's name in the model, from that on a rank of the team.
  std::string_view name_in_team(std::string_view name, std::int64_t team) const {
    if (teams_.count == 1) return name;
    const std::optional<ExpertName> expert = read_expert_name(name);
    if (!expert) {
      throw Error(ErrorCode::kUnsupported, "cannot read an optimizer whose groups are spread over different ranks")
          .because(fmt::format("'{}' is not a parameter of an expert of DeepSpeed's MoE", name));
    }
    const std::int64_t* const count = experts_.find(expert->before);
    if (count == nullptr || *count % teams_.count != 0 || expert->number >= *count / teams_.count) {
      throw Error(ErrorCode::kCorruption, fmt::format("the files of experts are not those of {} ranks", teams_.count))
          .of_tensor(name)
          .of_kind(FindingKind::kIndexMismatch)
          .found(count == nullptr ? 0 : *count);
    }
    const std::int64_t first = checked_mul(team, *count / teams_.count);
    return catalog_.arena->copy(
        fmt::format("{}{}{}", expert->before, checked_add(first, expert->number), expert->after));
  }

  /// Stages 1 and 2: the parameters of a group in a row, padded at the end, divided into one slice per rank.
  void lay_slices() {
    teams_ = teams_of_group();
    auto [sliced, rule] = find_slices();
    laid_.rules.push_back(rule);
    for (const OptimizerStates& rank : ranks_) {
      for (const FlatState& state : rank.states) {
        if (state.groups[group_]) check_length(rank, state.name, *state.groups[group_], sliced);
      }
    }
    const ParamGroup& params = groups_[group_];
    for (std::int64_t team = 0; team < teams_.count; ++team) {
      for (std::size_t i = 0; i < params.size(); ++i) {
        std::vector<FlatPiece> pieces = sliced.tensors[i];
        for (FlatPiece& piece : pieces) piece.part = teams_.rank_of(team, piece.part);
        add(name_in_team(params[i].name, team), params[i].shape, std::move(pieces));
      }
    }
  }

  /// The slices that match the lengths of the master weights, and their rule.
  std::pair<FlatLayout, FlatRule> find_slices() const {
    FlatRule rule;
    const std::int64_t align = param_align();
    for (const std::int64_t alignment : kAlignments) {
      rule = rule_of(alignment, align);
      FlatLayout sliced = slice(rule);
      if (std::ranges::all_of(ranks_, [&](const OptimizerStates& rank) { return fits(rank, sliced); }))
        return {std::move(sliced), rule};
    }
    FlatLayout usual = slice(rule_of(kAlignments.front(), align));
    for (const OptimizerStates& rank : ranks_) check_length(rank, "fp32", rank.masters[group_], usual);
    return {std::move(usual), rule};  // Not reached, because one of them did not match.
  }

  FlatRule rule_of(std::int64_t alignment, std::int64_t align) const {
    FlatRule rule = FlatRule::zero12(teams_.size, alignment);
    rule.align = align;
    return rule;
  }

  /// The number of elements at whose multiples parameters begin, from the paddings that the save records.
  std::int64_t param_align() const {
    const std::vector<std::vector<std::int64_t>>& paddings = ranks_.front().paddings;
    if (paddings.empty()) return 1;
    const std::vector<std::int64_t> numels = numels_of(groups_[group_]);
    const auto found = std::ranges::find_if(
        kParamAligns, [&](std::int64_t align) { return paddings_of(numels, align) == paddings[group_]; });
    if (found == kParamAligns.end()) throw wrong_paddings(ranks_.front());
    return *found;
  }

  Error wrong_paddings(const OptimizerStates& rank) const {
    return Error(ErrorCode::kCorruption,
                 fmt::format("param_alignment_paddings of group {} are not those of its parameters", group_))
        .in_file(catalog_.files[rank.file].path)
        .of_kind(FindingKind::kShapeMismatch)
        .of_rank(static_cast<int>(rank.ranks.data_rank));
  }

  /// The slices of the group under one alignment. An impossible layout means that the parameters' shapes are wrong.
  FlatLayout slice(const FlatRule& rule) const {
    try {
      return lay_flat(numels_of(groups_[group_]), {}, rule);
    } catch (Error& error) {
      throw error.of_kind(FindingKind::kBadPickle);
    }
  }

  /// A rank's slice may be stored with or without the padding at the end of the buffer.
  bool fits(const OptimizerStates& rank, const FlatLayout& sliced) const {
    const std::int64_t length = rank.masters[group_].shape[0];
    return length == sliced.part_size() || length == sliced.used_by(teams_.member(rank.ranks.data_rank));
  }

  void check_length(const OptimizerStates& rank, std::string_view what, const TensorView& view,
                    const FlatLayout& sliced) const {
    const std::int64_t real = sliced.used_by(teams_.member(rank.ranks.data_rank)), padded = sliced.part_size();
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
      add(param.name, param.shape, lay_parted(numel, count, sum));
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
  bool are_teams_consecutive_;
  HashMap<std::string_view, std::int64_t> experts_;  ///< By MoE layer, their number on all ranks.
  std::size_t group_ = 0;
  Teams teams_;  ///< The teams that share the group.
  FlatParams laid_;
};

}  // namespace

std::vector<std::int64_t> numels_of(const ParamGroup& params) {
  std::vector<std::int64_t> numels;
  for (const ParamShape& param : params) numels.push_back(checked_numel(param.shape));
  return numels;
}

FlatParams lay_out(Catalog& catalog, const std::vector<ParamGroup>& groups, const Save& save) {
  return ParamLayout(catalog, groups, save).make();
}

}  // namespace shard::deepspeed
