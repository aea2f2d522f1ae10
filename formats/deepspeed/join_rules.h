/// \file
/// How the parameters of several model-parallel ranks make one: the patterns of universal_checkpoint_info. Inside
/// formats/deepspeed only.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py (merge_tp_slices), constants.py of 0.18.2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/value.h"

namespace shard::deepspeed {

struct JoinRule {
  enum class Kind {
    kConcat,      ///< Along `dim`; each of `segments` by itself, where there are some.
    kReplicated,  ///< Equal on all ranks.
  };
  Kind kind = Kind::kConcat;
  int dim = 0;
  std::vector<std::int64_t> segments{};  ///< Sizes of the whole parameter along `dim`.
  bool is_halved = false;                ///< Two segments of equal size.
  std::optional<std::int64_t> rows{};    ///< Rows past these are padding (of a vocabulary).
  const Value* sub_params = nullptr;     ///< The entry of parameter_with_sub_params that says the segments, or null.
};

class JoinRules {
 public:
  /// \throws Error kCorruption   `info` is not as DeepSpeed writes it; kUnsupported  lists and patterns that are not
  ///   read: averages, widths of shards, what is not RE2, patterns that are too large together.
  explicit JoinRules(const Value& info);
  ~JoinRules();

  /// Python's re.match of each pattern. Without one the parameter is concatenated along dimension 0.
  /// Cost: one pass over the name. \throws Error kUnsupported  patterns of several lists match, or are too slow.
  JoinRule rule_for(std::string_view name) const;

 private:
  struct List;
  struct Patterns;
  std::vector<List> lists_;
  std::unique_ptr<Patterns> patterns_;  ///< Of all lists.
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace shard::deepspeed
