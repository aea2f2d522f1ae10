/// \file
/// AdapterConfig: the numbers of PEFT's adapter_config.json that merging an adapter needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

class AdapterAlphas;

struct AdapterConfig {
  static constexpr std::int64_t kMostBytes = 1 << 20;

  bool is_rslora = false;          ///< The scale is alpha / sqrt(rank), not alpha / rank.
  bool is_dora = false;            ///< Each weight has a magnitude for each of its rows.
  bool is_fan_in_fan_out = false;  ///< Weights are stored as [in, out].
  /// The alpha of each module: of the first key of `alpha_pattern` that matches, or else `lora_alpha`.
  std::shared_ptr<const AdapterAlphas> alphas;

  /// The factor of a module's product. `module` is its name in the base model.
  /// \throws Error kUnsupported  the patterns take too long
  double scale_of(std::string_view module, std::int64_t rank) const;
};

/// Parses the text of an adapter_config.json. \param file  its name in errors
/// \throws Error kCorruption  malformed; no `lora_alpha`. kUnsupported  an adapter that is not LoRA, or a form of LoRA
///   that changes more than weights, changes the base model, or has other formulas: by the name of its key
AdapterConfig parse_adapter_config(std::string_view text, const std::string& file);

}  // namespace shard
