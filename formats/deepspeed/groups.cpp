#include "formats/deepspeed/groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/layouts/flat_buffer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/value_equality.h"

namespace shard::deepspeed {

namespace {

Dims module_shape(const Save& save, std::string_view name) {
  if (const TensorView* view = save.models.front().module.find(name)) return view->shape;
  throw Error(ErrorCode::kCorruption, fmt::format("the optimizer names '{}', which the module does not contain", name))
      .of_tensor(name)
      .of_kind(FindingKind::kIndexMismatch);
}

Error cannot_regroup(const std::string& why) {
  return Error(ErrorCode::kUnsupported, "cannot write the checkpoint for a different number of ranks").because(why);
}

/// The round-robin order of `count` parameters, which are dealt to `hands`. The order is hand after hand.
std::vector<std::size_t> dealt(std::size_t count, std::size_t hands) {
  std::vector<std::size_t> order;
  for (std::size_t hand = 0; hand < std::min(hands, count); ++hand) {
    for (std::size_t i = hand; i < count; i += hands) order.push_back(i);
  }
  return order;
}

/// Undoes the deal to `old_hands`, and deals the original order to `new_hands`.
ParamGroup deal_again(const ParamGroup& group, std::int64_t old_hands, std::int64_t new_hands) {
  ParamGroup original(group.size()), again;
  const std::vector<std::size_t> old_order = dealt(group.size(), static_cast<std::size_t>(old_hands));
  for (std::size_t i = 0; i < group.size(); ++i) original[old_order[i]] = group[i];
  for (const std::size_t i : dealt(group.size(), static_cast<std::size_t>(new_hands))) again.push_back(original[i]);
  return again;
}

/// The number of parameters in each sub-group. A sub-group is closed when the elements of its parameters on one rank
/// reach `size`; if all together do not exceed `size`, there is one sub-group.
std::vector<std::size_t> cut_sub_groups(const ParamGroup& params, std::int64_t ranks, std::int64_t size) {
  std::vector<std::size_t> counts;
  std::int64_t all = 0, sum = 0;
  for (const ParamShape& param : params) all = checked_add(all, parted_size(checked_numel(param.shape), ranks));
  if (size >= all) return {params.size()};
  std::size_t count = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    sum += parted_size(checked_numel(params[i].shape), ranks);
    ++count;
    if (sum < size && i + 1 < params.size()) continue;
    counts.push_back(count);
    sum = 0, count = 0;
  }
  return counts;
}

NewGroups unchanged(const std::vector<ParamGroup>& groups) {
  NewGroups same;
  for (std::size_t g = 0; g < groups.size(); ++g) same.groups.push_back({groups[g], {g}});
  return same;
}

NewGroups deal_all(const Save& save, const std::vector<ParamGroup>& groups, std::int64_t ranks) {
  NewGroups dealt = unchanged(groups);
  dealt.differ = true;
  for (NewGroup& group : dealt.groups) {
    group.params = deal_again(group.params, std::ssize(save.optimizers), ranks);
  }
  return dealt;
}

/// Rebuilds the sub-groups of stage 3.
class SubGroups {
 public:
  SubGroups(const Save& save, const std::vector<ParamGroup>& groups, std::int64_t ranks)
      : save_(save), old_(groups), ranks_(ranks) {}

  NewGroups make() {
    std::size_t next = 0;
    for (const std::vector<std::int64_t>& members : save_.optimizers.front().members) {
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i] != static_cast<std::int64_t>(next + i)) throw not_in_order();
      }
      if (next + members.size() > old_.size()) throw not_in_order();
      add(next, next + members.size());
      next += members.size();
    }
    if (next != old_.size()) throw not_in_order();
    return std::move(new_);
  }

 private:
  static Error not_in_order() {
    return cannot_regroup("it does not record from which groups its sub-groups were made");
  }

  void add(std::size_t begin, std::size_t end) {
    ParamGroup params;
    std::vector<std::size_t> counts, group_of;
    for (std::size_t g = begin; g < end; ++g) {
      params.insert(params.end(), old_[g].begin(), old_[g].end());
      counts.push_back(old_[g].size());
      group_of.insert(group_of.end(), old_[g].size(), g);
    }
    const std::int64_t size = save_.models.front().sub_group_size;
    if (cut_sub_groups(params, std::ssize(save_.optimizers), size) != counts) {
      throw cannot_regroup(fmt::format("its sub-groups are not those of sub_group_size {}", size));
    }
    std::vector<std::int64_t>& members = new_.members.emplace_back();
    const std::vector<std::size_t> again = cut_sub_groups(params, ranks_, size);
    if (again != counts) check_steps(begin, end);
    std::size_t first = 0;
    for (const std::size_t count : again) {
      members.push_back(std::ssize(new_.groups));
      NewGroup& group = new_.groups.emplace_back();
      const auto at = static_cast<std::ptrdiff_t>(first), till = static_cast<std::ptrdiff_t>(first + count);
      group.params.assign(params.begin() + at, params.begin() + till);
      group.from.assign(group_of.begin() + at, group_of.begin() + till);
      const auto repeated = std::ranges::unique(group.from);
      group.from.erase(repeated.begin(), repeated.end());
      if (group.from.empty()) group.from.push_back(begin);
      first += count;
    }
    new_.differ = new_.differ || again != counts;
  }

  void check_steps(std::size_t begin, std::size_t end) const {
    const auto& steps = save_.optimizers.front().steps;
    Value* const* const first = steps.find(static_cast<std::int64_t>(begin));
    ValueEquality equality;
    for (std::size_t g = begin; g < end; ++g) {
      Value* const* const step = steps.find(static_cast<std::int64_t>(g));
      if ((first == nullptr) == (step == nullptr) && (first == nullptr || equality.is_equal(**first, **step))) continue;
      throw cannot_regroup(fmt::format("sub-groups {} and {} would be joined and differ in their states", begin, g));
    }
  }

  const Save& save_;
  const std::vector<ParamGroup>& old_;
  std::int64_t ranks_;
  NewGroups new_;
};

}  // namespace

std::vector<ParamGroup> groups_of(const Save& save) {
  if (save.models.front().groups) return *save.models.front().groups;
  if (save.optimizers.front().groups) return *save.optimizers.front().groups;
  std::vector<ParamGroup> groups(save.optimizers.front().masters.size());
  HashSet<std::string_view> seen;
  for (const OptimizerStates& rank : save.optimizers) {
    for (std::size_t g = 0; g < std::min(groups.size(), rank.mapped_names.size()); ++g) {
      for (const std::string_view name : rank.mapped_names[g]) {
        if (seen.insert(name)) groups[g].push_back({name, module_shape(save, name)});
      }
    }
  }
  return groups;
}

NewGroups regroup(const Save& save, const std::vector<ParamGroup>& groups, std::int64_t ranks) {
  if (ranks == std::ssize(save.optimizers)) return unchanged(groups);
  if (save.models.front().stage < 0) throw cannot_regroup("it does not contain its configuration as plain data");
  if (save.is_parted()) return SubGroups(save, groups, ranks).make();
  if (!save.models.front().round_robin) return unchanged(groups);
  if (save.models.front().aligned_params) {
    throw cannot_regroup("round_robin_gradients and parameter_alignment would change the padding between parameters");
  }
  return deal_all(save, groups, ranks);
}

}  // namespace shard::deepspeed
