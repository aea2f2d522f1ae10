/// \file
/// Joins the tensors of all model-parallel ranks to those of the model, by the patterns of universal_checkpoint_info.
/// Inside formats/deepspeed only.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py (merge_tp_slices), constants.py of 0.18.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/value.h"

namespace shard::deepspeed {

/// How a parameter of several model-parallel ranks is joined.
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

/// The rules of a save, for all its parameters.
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

/// The entries that one model-parallel rank has added to a catalog.
struct RankEntries {
  const ModelStates& model;
  std::vector<Tensor> tensors;   ///< Removed from the catalog; their chunks are still in it.
  std::size_t first_stored = 0;  ///< The index of its first stored tensor. They end at those of the next rank.
};

/// True if the states contain universal_checkpoint_info.
bool holds_rules(const ModelStates& model);

/// Adds the joined tensors of all ranks to `catalog`. Each stage of a pipeline has `tensor_ranks` consecutive ranks.
/// They are joined by the rules of rank 0's universal_checkpoint_info, if there are several. A parameter's states
/// follow its rule, and an alias that of its parameter. Buffers count as equal (a warning names them). Shared layers
/// of several stages are replicas. The chunks of `catalog` are rebuilt; data-parallel rank D of model-parallel rank M
/// becomes rank D * ranks + M.
///
/// \pre `ranks` is not empty, its number is a multiple of `tensor_ranks`; the only other tensors in `catalog` are those
///   of the objects' trees, in one chunk each
/// \throws Error kUnsupported  there are no such rules, or JoinRules refuses them; ranks of a stage have different
///   names, or stages have the same ones.
/// \throws Error kCorruption  shapes do not fit together (kind shape_mismatch).
void join_model_ranks(Catalog& catalog, const std::vector<RankEntries>& ranks, std::size_t tensor_ranks);

}  // namespace shard::deepspeed
