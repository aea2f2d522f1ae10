#include "formats/deepspeed/join_rules.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "formats/deepspeed/state_values.h"
#include "libshard/catalog/selection/pattern_sets.h"

namespace shard::deepspeed {

namespace {

constexpr std::size_t kMaxPatterns = 256;
constexpr std::int64_t kMaxPrograms = 1 << 14;  ///< The largest number of instructions of all patterns.

Error unsupported_info(const std::string& what) {
  return Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
      .because(fmt::format("their universal_checkpoint_info {}", what));
}

/// The sizes along `dim` of a sub-parameter shape; empty for a single size, which is not a segment.
std::vector<std::int64_t> segments_of(const Value& shape, int dim) {
  const std::span<Value* const> sizes = pickle::sequence(shape, "parameter_with_sub_params");
  if (dim < 0 || static_cast<std::size_t>(dim) >= sizes.size()) {
    throw pickle::malformed("parameter_with_sub_params", "its partition_dim is not one of its shape");
  }
  const Value& along = *sizes[static_cast<std::size_t>(dim)];
  if (along.kind == ValueKind::kInt) return {pickle::natural(along, "parameter_with_sub_params")};
  return pickle::naturals(along, "parameter_with_sub_params");
}

}  // namespace

struct JoinRules::List {
  std::string name;
  JoinRule rule;
  bool is_vocabulary = false;
};

/// The patterns of all lists, each with the number of its list. One pass over a name tests all of them.
struct JoinRules::Patterns {
  PatternSets sets{RE2::ANCHOR_START};
  std::vector<std::size_t> lists{};  ///< By pattern.
  std::int64_t programs = 0;
  MatchTime time{};

  void add(std::string_view text, std::size_t list) {
    if (lists.size() == kMaxPatterns) throw unsupported_info(fmt::format("has more than {} patterns", kMaxPatterns));
    const std::unique_ptr<RE2> pattern = sets.add(lists.size(), std::string(text));
    const bool is_plain = pattern != nullptr && pattern->ok();
    if (!is_plain || (programs += pattern->ProgramSize()) > kMaxPrograms) {
      throw unsupported_info(fmt::format("has the pattern '{}', which is not plain enough", text));
    }
    lists.push_back(list);
  }

  /// The lists that have a matching pattern, ascending, without duplicates.
  std::vector<std::size_t> matching(std::string_view name) const {
    std::vector<std::size_t> numbers;
    const auto match = [&] { return name.size() > MatchTime::kLongestName || sets.append_matching(name, numbers); };
    if (!time(name, match)) throw unsupported_info("has patterns that are not plain enough").of_tensor(name);
    for (std::size_t& number : numbers) number = lists[number];
    std::ranges::sort(numbers);
    numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
    return numbers;
  }
};

JoinRules::JoinRules(const Value& info) : patterns_(std::make_unique<Patterns>()) {
  const auto add = [&](std::string_view name, const Value& patterns, JoinRule rule) {
    for (const Value* pattern : pickle::sequence(patterns, name)) {
      patterns_->add(pickle::string(*pattern, name), lists_.size());
    }
    lists_.push_back({std::string(name), std::move(rule), name.starts_with("vocabulary")});
  };
  const auto add_list = [&](std::string_view name, const JoinRule& rule) {
    if (const Value* patterns = find_value(info, name)) add(name, *patterns, rule);
  };
  for (const char* name : {"parameter_to_average_patterns", "pipeline_replicated_parameter_patterns",
                           "expert_parameter_patterns", "sub_param_shard_widths"}) {
    const Value* const value = find_value(info, name);
    const bool is_empty = value == nullptr || (value->has_elements() && value->items().empty());
    if (!is_empty) throw unsupported_info(fmt::format("has '{}', which is not read", name));
  }
  add_list("tp_replicated_parameter_patterns", {JoinRule::Kind::kReplicated});
  add_list("parameter_with_row_parallelism_patterns", {JoinRule::Kind::kConcat, 1});
  add_list("parameter_with_2_sub_params_cat_dim_0", {JoinRule::Kind::kConcat, 0, {}, true});
  add_list("vocabulary_parameter_patterns", {});
  if (const Value* vocabulary = find_value(info, "original_vocab_size")) {
    vocabulary_ = pickle::natural(*vocabulary, "original_vocab_size");
  }
  const Value* const subs = find_value(info, "parameter_with_sub_params");
  const auto entries =
      subs == nullptr ? std::span<Value* const>() : pickle::sequence(*subs, "parameter_with_sub_params");
  for (const Value* sub : entries) {
    if (!is_mapping(*sub)) throw unsupported_info("has sub-parameters that are not a dict");
    if (find_value(*sub, "sub_param_shard_widths") != nullptr) throw unsupported_info("has widths of shards");
    const int dim = static_cast<int>(
        std::min<std::int64_t>(pickle::natural(need_value(*sub, "partition_dim"), "partition_dim"), 1 << 20));
    add("parameter_with_sub_params", need_value(*sub, "patterns"),
        {.dim = dim, .segments = segments_of(need_value(*sub, "shape"), dim), .sub_params = sub});
  }
  if (!patterns_->sets.compile()) throw unsupported_info("has patterns that are not plain enough");
}

JoinRules::~JoinRules() = default;

JoinRule JoinRules::rule_for(std::string_view name) const {
  JoinRule rule;
  const List* found = nullptr;
  bool is_vocabulary = false;
  for (const std::size_t number : patterns_->matching(name)) {
    const List& list = lists_[number];
    if (list.is_vocabulary) {
      is_vocabulary = true;
    } else if (found != nullptr) {
      throw unsupported_info(fmt::format("matches '{}' with {} and {}", name, found->name, list.name)).of_tensor(name);
    } else {
      found = &list;
      rule = list.rule;
    }
  }
  if (!is_vocabulary) return rule;
  if (!vocabulary_) throw unsupported_info("does not say the original_vocab_size").of_tensor(name);
  rule.rows = vocabulary_;
  return rule;
}

}  // namespace shard::deepspeed
