/// \file
/// AdapterConfig: the numbers of PEFT's adapter_config.json that merging an adapter needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/hash_table.h"

namespace shard {

class AdapterAlphas;

struct AdapterConfig {
  static constexpr std::int64_t kMostBytes = 1 << 20;

  bool is_rslora = false;          ///< The scale is alpha / sqrt(rank), not alpha / rank.
  bool is_dora = false;            ///< Each weight has a magnitude for each of its rows.
  bool has_biases = false;         ///< Biases were trained too. Those in the adapter replace the base model's.
  bool is_fan_in_fan_out = false;  ///< Weights are stored as [in, out].
  bool has_no_head = false;        ///< It states a task or class of a model that has no head of words.
  /// The alpha of each target: that of the first matching key of `alpha_pattern`, or else `lora_alpha`.
  std::shared_ptr<const AdapterAlphas> alphas;
  HashMap<std::string, double> scales;       ///< By module, if PEFT did not write the adapter; `alphas` is null.
  HashSet<std::string> parameters;           ///< `target_parameters`: names of parameters, or their ends after a dot.
  std::vector<std::string> modules_to_save;  ///< Names of modules that were trained as a whole.

  /// Whether the adapter changes this parameter by its own name, not by that of its module.
  bool targets(std::string_view parameter) const;
  /// The factor of a product. \pre alphas, or one of `scales`. `target` is a module's name in the base model, or a
  /// parameter's if the adapter targets it. \throws Error kUnsupported  the patterns take too long
  double scale_of(std::string_view target, std::int64_t rank) const;
};

/// Parses the text of an adapter_config.json. \param file  its name in errors
/// \throws Error kCorruption  malformed; no `lora_alpha`. kUnsupported  an adapter that is not LoRA, or a form of LoRA
///   that changes more than weights, changes the base model, or has different formulas. The message names its key
AdapterConfig parse_adapter_config(std::string_view text, const std::string& file);

}  // namespace shard
