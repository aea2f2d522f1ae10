#include "formats/deepspeed/join.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"
#include "libshard/core/value_walk.h"

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
    sort_unique(numbers);
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
  for (const char* name : {"parameter_to_average_patterns", "expert_parameter_patterns", "sub_param_shard_widths",
                           "autotp_unsupported_parameter_patterns"}) {
    const Value* const value = find_value(info, name);
    const bool is_empty = value == nullptr || (value->has_elements() && value->items().empty());
    if (!is_empty) throw unsupported_info(fmt::format("has '{}', which is not read", name));
  }
  // AutoTP also describes parameters by maps. Its lists are equivalent, except for parts that it multiplies.
  const Value* const maps = find_value(info, "affine_map");
  const auto is_scaled = [](const Value& each) { return is_mapping(each) && find_key(each, "scale") != nullptr; };
  if (maps != nullptr && find_below(*maps, is_scaled) != nullptr) {
    throw unsupported_info("has an affine_map with scaled parts, which is not read");
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
  if (!vocabulary_) throw unsupported_info("has no original_vocab_size").of_tensor(name);
  rule.rows = vocabulary_;
  return rule;
}

namespace {

/// A range of a rank's part along the rule's dimension, and its offset in the whole parameter.
struct Stretch {
  std::int64_t begin, end, to;
};

class Join {
 public:
  /// `info` may be null if each stage has one rank.
  Join(Catalog& catalog, const std::vector<RankEntries>& ranks, std::size_t tensor_ranks, const Value* info)
      : catalog_(catalog), builder_(catalog), arena_(*catalog.arena), ranks_(ranks), tensor_ranks_(tensor_ranks) {
    if (info != nullptr) rules_.emplace(*info);
  }

  void run() {
    collect();
    old_ = std::exchange(catalog_.chunks, {});
    keep_others();
    for (const auto& [name, parts] : parts_.entries()) join(parts);
    number_ranks();
    if (found_buffers_.count() > 0) {
      catalog_.warnings.push_back(
          fmt::format("buffers are read as equal on all model-parallel ranks: {}", found_buffers_.text()));
    }
  }

 private:
  /// Lists the parts of each tensor, by stage, then rank in the stage.
  void collect() {
    for (std::size_t begin = 0; begin < ranks_.size(); begin += tensor_ranks_) {
      for (const std::string_view name : ranks_[begin].model.buffers.keys()) buffers_.insert(name);
      for (const auto& [alias, real] : ranks_[begin].model.shared.entries()) shared_[alias] = real;
      for (const Tensor& tensor : ranks_[begin].tensors) {
        std::vector<const Tensor*>& parts = parts_[tensor.name];
        if (!parts.empty() && !name_in_model(tensor).starts_with(kTiedModules)) throw same_name(tensor);
        parts.push_back(&tensor);
      }
      for (std::size_t rank = begin + 1; rank < begin + tensor_ranks_; ++rank) {
        if (ranks_[rank].tensors.size() != ranks_[begin].tensors.size()) throw other_names(rank, begin);
        for (const Tensor& tensor : ranks_[rank].tensors) {
          std::vector<const Tensor*>* const parts = parts_.find(tensor.name);
          const bool is_next = parts != nullptr && parts->size() % tensor_ranks_ == rank - begin;
          if (!is_next) throw other_names(rank, begin).of_tensor(tensor.name);
          parts->push_back(&tensor);
        }
      }
    }
  }

  static Error other_names(std::size_t rank, std::size_t first) {
    return Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
        .because(fmt::format("model-parallel rank {} has different tensors from rank {}", rank, first));
  }

  static Error same_name(const Tensor& tensor) {
    return Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
        .because(fmt::format("stages of a pipeline have the same name '{}'", tensor.name))
        .of_tensor(tensor.name);
  }

  /// The name of the parameter, if the tensor is its state optimizer.state.NAME.STATE.
  static std::string_view name_in_model(const Tensor& tensor) {
    return tensor.path.size() == 4 ? tensor.path[2].key() : tensor.name;
  }

  Error does_not_fit(const Tensor& tensor) const {
    Error error(ErrorCode::kCorruption,
                fmt::format("the parts of '{}' on the model-parallel ranks do not fit together", tensor.name));
    error.of_tensor(tensor.name).of_kind(FindingKind::kShapeMismatch);
    return error.found(to_string(tensor.shape));
  }

  /// Keeps the chunks of tensors inside objects.
  void keep_others() {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::span<const Chunk> chunks = old_chunks(catalog_.tensors[i]);
      builder_.resume(i);
      for (const Chunk& chunk : chunks) builder_.add_chunk(chunk);
    }
  }

  JoinRule rule_of(const Tensor& tensor) {
    if (!rules_) return {JoinRule::Kind::kReplicated};
    const std::string_view name = name_in_model(tensor);
    if (buffers_.contains(name)) {
      found_buffers_.add(name);
      return {JoinRule::Kind::kReplicated};
    }
    const std::string_view* const real = shared_.find(name);
    return rules_->rule_for(real != nullptr ? *real : name);
  }

  void join(const std::vector<const Tensor*>& parts) {
    const Tensor& first = *parts.front();
    const JoinRule rule = rule_of(first);
    for (const Tensor* part : parts) {
      if (part->shape != first.shape || part->dtype != first.dtype) throw does_not_fit(*part);
    }
    builder_.begin(first);
    if (rule.kind == JoinRule::Kind::kReplicated || tensor_ranks_ == 1) {
      for (const Tensor* part : parts) {
        for (const Chunk& chunk : old_chunks(*part)) builder_.add_chunk(chunk);
      }
    } else {
      builder_.tensor().shape = whole_shape(first, rule);
      for (std::size_t i = 0; i < parts.size(); ++i) place(*parts[i], rule, i % tensor_ranks_);
    }
    if (rule.rows) cut_rows(*rule.rows);
  }

  std::span<const Chunk> old_chunks(const Tensor& tensor) const {
    return std::span(old_).subspan(tensor.first_chunk, tensor.chunk_count);
  }

  Dims whole_shape(const Tensor& part, const JoinRule& rule) const {
    if (rule.dim >= part.shape.size()) throw does_not_fit(part);
    std::vector<std::int64_t> shape(part.shape.begin(), part.shape.end());
    std::int64_t& size = shape[static_cast<std::size_t>(rule.dim)];
    size = checked_mul(size, static_cast<std::int64_t>(tensor_ranks_));
    return arena_.dims(shape);
  }

  /// The ranges of rank `rank`'s part, in order.
  std::vector<Stretch> stretches(const Tensor& part, const JoinRule& rule, std::size_t rank) const {
    const auto ranks = static_cast<std::int64_t>(tensor_ranks_), number = static_cast<std::int64_t>(rank);
    const std::int64_t own = part.shape[rule.dim];
    std::vector<std::int64_t> segments = rule.segments;
    if (rule.is_halved) {
      if (own % 2 != 0) throw does_not_fit(part);
      segments.assign(2, own / 2 * ranks);
    }
    if (segments.empty()) return {{0, own, number * own}};
    std::vector<Stretch> all;
    std::int64_t begin = 0, to = 0;
    for (const std::int64_t segment : segments) {
      if (segment % ranks != 0 || segment / ranks > own - begin) throw does_not_fit(part);
      all.push_back({begin, begin + segment / ranks, to + number * (segment / ranks)});
      begin += segment / ranks;
      to += segment;
    }
    if (begin != own) throw does_not_fit(part);
    return all;
  }

  void place(const Tensor& part, const JoinRule& rule, std::size_t rank) {
    const auto d = static_cast<std::size_t>(rule.dim);
    for (const Stretch& stretch : stretches(part, rule, rank)) {
      for (const Chunk& chunk : old_chunks(part)) {
        const std::int64_t offset = chunk.offsets[rule.dim], end = offset + chunk.sizes[rule.dim];
        const std::int64_t from = std::max(offset, stretch.begin), till = std::min(end, stretch.end);
        const bool is_empty_part = stretch.begin == stretch.end || is_empty(chunk.sizes);
        if (from >= till && !is_empty_part) continue;
        std::vector<std::int64_t> offsets(chunk.offsets.begin(), chunk.offsets.end());
        std::vector<std::int64_t> sizes(chunk.sizes.begin(), chunk.sizes.end());
        offsets[d] = stretch.to + from - stretch.begin;
        sizes[d] = std::max<std::int64_t>(till - from, 0);
        builder_.add_chunk(chunk.stored, offsets, sizes, chunk.strides,
                           chunk.first + (from - offset) * chunk.strides[rule.dim]);
      }
    }
  }

  /// Drops the rows from `rows` on from the last tensor.
  void cut_rows(std::int64_t rows) {
    Tensor& whole = builder_.tensor();
    if (whole.shape.size() == 0 || rows > whole.shape[0]) throw does_not_fit(whole);
    std::vector<std::int64_t> shape(whole.shape.begin(), whole.shape.end());
    shape[0] = rows;
    whole.shape = arena_.dims(shape);
    const std::vector<Chunk> chunks(catalog_.chunks.begin() + whole.first_chunk, catalog_.chunks.end());
    catalog_.chunks.resize(whole.first_chunk);
    whole.chunk_count = 0;
    for (const Chunk& chunk : chunks) {
      if (chunk.offsets[0] >= rows && rows > 0) continue;
      std::vector<std::int64_t> sizes(chunk.sizes.begin(), chunk.sizes.end());
      sizes[0] = std::clamp<std::int64_t>(rows - chunk.offsets[0], 0, sizes[0]);
      std::vector<std::int64_t> offsets(chunk.offsets.begin(), chunk.offsets.end());
      if (rows == 0) offsets[0] = 0;
      builder_.add_chunk(chunk.stored, offsets, sizes, chunk.strides, chunk.first);
    }
  }

  void number_ranks() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::size_t end = rank + 1 < ranks_.size() ? ranks_[rank + 1].first_stored : catalog_.stored.size();
      for (std::size_t i = ranks_[rank].first_stored; i < end; ++i) {
        std::int32_t& number = catalog_.stored[i].rank;
        if (number >= 0) number = number * static_cast<std::int32_t>(ranks_.size()) + static_cast<std::int32_t>(rank);
      }
    }
  }

  Catalog& catalog_;
  CatalogBuilder builder_;
  Arena& arena_;
  const std::vector<RankEntries>& ranks_;
  std::size_t tensor_ranks_;
  // The names of all stages.
  HashSet<std::string_view> buffers_;
  HashMap<std::string_view, std::string_view> shared_;  ///< From an alias to the name that it repeats.
  std::optional<JoinRules> rules_;                      ///< Set if a stage has several ranks.
  HashMap<std::string_view, std::vector<const Tensor*>> parts_;
  std::vector<Chunk> old_;
  FirstNames found_buffers_;
};

/// Null if there is none.
const Value* info_of(const ModelStates& model) {
  const Value* const info = find_value(*model.root, "universal_checkpoint_info");
  return info != nullptr && is_mapping(*info) ? info : nullptr;
}

}  // namespace

bool holds_rules(const ModelStates& model) { return info_of(model) != nullptr; }

void join_model_ranks(Catalog& catalog, const std::vector<RankEntries>& ranks, std::size_t tensor_ranks) {
  const ModelStates& model = ranks.front().model;
  const bool is_plain_pipeline = tensor_ranks == 1 && ranks.size() > 1;
  const Value* const info = is_plain_pipeline ? nullptr : info_of(model);
  if (info == nullptr && !is_plain_pipeline) {
    throw Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
        .in_file(catalog.files[model.file].path)
        .because("it has no universal_checkpoint_info, which contains the rules");
  }
  Join(catalog, ranks, tensor_ranks, info).run();
  if (ranks.size() > 1) catalog.warnings.emplace_back("objects are those of model-parallel rank 0");
}

}  // namespace shard::deepspeed
