/// \file
/// The rules by which the parameters of several model-parallel ranks are joined: the patterns of
/// universal_checkpoint_info. Inside formats/deepspeed only.
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
    kConcat,      ///< Along `dim`; if there are `segments`, each one separately.
    kReplicated,  ///< Equal on all ranks.
  };
  Kind kind = Kind::kConcat;
  int dim = 0;
  std::vector<std::int64_t> segments{};  ///< Sizes of the whole parameter along `dim`.
  bool is_halved = false;                ///< Two segments of equal size.
  std::optional<std::int64_t> rows{};    ///< Rows from this number on are padding (of a vocabulary).
  const Value* sub_params = nullptr;     ///< The entry of parameter_with_sub_params with the segments, or null.
};

class JoinRules {
 public:
  /// \throws Error kCorruption   `info` does not have DeepSpeed's form; kUnsupported  lists and patterns that are not
  ///   supported: averages, widths of shards, syntax that RE2 lacks, patterns that are too large in total.
  explicit JoinRules(const Value& info);
  ~JoinRules();

  /// The rule of a parameter. Patterns match as Python's re.match does. Without a match the parameter is concatenated
  /// along dimension 0.
  /// Cost: one pass over the name. \throws Error kUnsupported  patterns of several lists match, or are too slow.
  JoinRule rule_for(std::string_view name) const;

 private:
  struct List;
  struct Patterns;
  std::vector<List> lists_;
  std::unique_ptr<Patterns> patterns_;  ///< The patterns of all lists.
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace shard::deepspeed
