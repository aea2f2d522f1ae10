#include "libshard/compute/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/json_builder.h"

namespace shard {

/// Patterns over names of modules and parameters, as PEFT matches them: KEY is a regular expression for a name or for
/// its end.
class AdapterAlphas {
 public:
  explicit AdapterAlphas(double alpha) : alpha_(alpha) {}

  /// \returns false if the pattern is malformed or too large
  bool add(const std::string& key, double alpha) {
    const auto compiled = patterns_.add(by_key_.size(), fmt::format("(?:.*\\.)?(?:{})", key));
    by_key_.push_back(alpha);
    return compiled != nullptr && compiled->ok();
  }
  /// Called once, after the last pattern. \returns false if they are too large
  bool compile() { return by_key_.empty() || patterns_.compile(); }

  double alpha_of(std::string_view module) const {
    if (by_key_.empty() || module.size() > MatchTime::kLongestName) return alpha_;
    std::vector<std::size_t> numbers;
    const bool is_sure = time_(module, [&] { return patterns_.append_matching(module, numbers); });
    if (!is_sure) throw Error(ErrorCode::kUnsupported, "the patterns of alpha_pattern are too large");
    const auto first = std::ranges::min_element(numbers);
    return first == numbers.end() ? alpha_ : by_key_[*first];
  }

 private:
  double alpha_;
  std::vector<double> by_key_;
  PatternSets patterns_{RE2::ANCHOR_BOTH};
  MatchTime time_;
};

namespace {

using Json = nlohmann::ordered_json;  // The first key that matches counts.

/// Keys of forms that cannot be merged, unless their value is null, false, 0 or empty.
constexpr std::array<std::string_view, 10> kRefused{"use_qalora",
                                                    "use_bdlora",
                                                    "lora_bias",
                                                    "trainable_token_indices",
                                                    "alora_invocation_tokens",
                                                    "layer_replication",
                                                    "velora_config",
                                                    "monteclora_config",
                                                    "arrow_config",
                                                    "kasa_config"};
/// Which biases are trained. The adapter then contains them whole.
constexpr std::array<std::string_view, 4> kBiases{"", "none", "all", "lora_only"};
/// Ways of initialisation that change the base model.
constexpr std::array<std::string_view, 5> kChangesBase{"pissa", "olora", "corda", "loftq", "lora_ga"};

Error refused(const std::string& file, std::string_view key, const std::string& found) {
  return Error(ErrorCode::kUnsupported,
               fmt::format("cannot merge this adapter: '{}' in {} is not supported", key, file))
      .in_file(file)
      .found(found)
      .hint("merge it with the library that trained it");
}

Error malformed(const std::string& file, std::string_view why) {
  return Error(ErrorCode::kCorruption, fmt::format("cannot read {}: {}", file, why))
      .in_file(file)
      .of_kind(FindingKind::kBadHeader);
}

bool is_off(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_number() && value == 0) ||
         (!value.is_primitive() && value.empty()) || value == "";
}

bool flag(const Json& config, const char* key, const std::string& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (!found->is_boolean()) throw malformed(file, fmt::format("'{}' is not a boolean", key));
  return found->get<bool>();
}

std::string text_at(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void refuse_forms(const Json& config, const std::string& file) {
  std::string type = text_at(config, "peft_type");
  if (type != "LORA") throw refused(file, "peft_type", type.empty() ? "none" : type).expected("LORA");
  const std::string bias = text_at(config, "bias");
  if (!contains(kBiases, bias)) throw refused(file, "bias", bias).expected("none, all or lora_only");
  for (const std::string_view key : kRefused) {
    const auto found = config.find(key);
    if (found != config.end() && !is_off(*found))
      throw refused(file, key, found->dump(-1, ' ', true, Json::error_handler_t::replace));
  }
  const std::string start = text_at(config, "init_lora_weights");
  const auto is_start = [&](std::string_view each) { return start.starts_with(each); };
  if (std::ranges::any_of(kChangesBase, is_start)) throw refused(file, "init_lora_weights", start);
}

/// From the task, or else from the class of the model: LlamaForCausalLM, GPT2LMHeadModel, T5ForConditionalGeneration.
bool states_no_head(const Json& config) {
  const std::string task = text_at(config, "task_type");
  if (!task.empty()) return task != "CAUSAL_LM" && task != "SEQ_2_SEQ_LM";
  const auto mapping = config.find("auto_mapping");
  const std::string model =
      mapping != config.end() && mapping->is_object() ? text_at(*mapping, "base_model_class") : std::string();
  const auto says = [&](std::string_view word) { return model.find(word) != std::string::npos; };
  return !model.empty() && !says("LM") && !says("ConditionalGeneration") && !says("Heads");
}

/// The names in a list; empty without it.
std::vector<std::string> names_at(const Json& config, const char* key, const std::string& file) {
  std::vector<std::string> names;
  const auto found = config.find(key);
  if (found == config.end() || is_off(*found)) return names;
  const auto is_text = [](const Json& each) { return each.is_string(); };
  if (!found->is_array() || !std::ranges::all_of(*found, is_text)) {
    throw malformed(file, fmt::format("'{}' is not a list of names", key));
  }
  for (const Json& each : *found) names.push_back(each.get<std::string>());
  return names;
}

double number(const Json& value, std::string_view key, const std::string& file) {
  if (!value.is_number()) throw malformed(file, fmt::format("'{}' is not a number", key));
  const auto found = value.get<double>();
  if (!std::isfinite(found)) throw malformed(file, fmt::format("'{}' is not a number", key));
  return found;
}

}  // namespace

AdapterConfig parse_adapter_config(std::string_view text, const std::string& file) {
  const Json config = parse_json<Json>(text, {}, [&](const std::string& why) { return malformed(file, why); });
  if (!config.is_object()) throw malformed(file, "it is not a JSON object");
  refuse_forms(config, file);
  const auto alpha = config.find("lora_alpha");
  if (alpha == config.end()) throw malformed(file, "it has no 'lora_alpha'");
  const auto alphas = std::make_shared<AdapterAlphas>(number(*alpha, "lora_alpha", file));
  if (const auto patterns = config.find("alpha_pattern"); patterns != config.end() && !is_off(*patterns)) {
    if (!patterns->is_object()) throw malformed(file, "'alpha_pattern' is not an object");
    for (const auto& [key, value] : patterns->items()) {
      if (!alphas->add(key, number(value, "alpha_pattern", file))) throw refused(file, "alpha_pattern", key);
    }
  }
  if (!alphas->compile()) throw refused(file, "alpha_pattern", "too many patterns");
  AdapterConfig made;
  made.is_rslora = flag(config, "use_rslora", file);
  made.is_dora = flag(config, "use_dora", file);
  const std::string bias = text_at(config, "bias");
  made.has_biases = bias == "all" || bias == "lora_only";
  made.is_fan_in_fan_out = flag(config, "fan_in_fan_out", file);
  made.has_no_head = states_no_head(config);
  made.alphas = alphas;
  for (std::string& target : names_at(config, "target_parameters", file)) made.parameters.insert(std::move(target));
  made.modules_to_save = names_at(config, "modules_to_save", file);
  return made;
}

bool AdapterConfig::targets(std::string_view parameter) const {
  if (parameters.size() == 0) return false;
  for (std::string_view end = parameter;;) {
    if (parameters.contains(end)) return true;
    const std::size_t dot = end.find('.');
    if (dot == std::string_view::npos) return false;
    end.remove_prefix(dot + 1);
  }
}

double AdapterConfig::scale_of(std::string_view target, std::int64_t rank) const {
  if (const double* const known = scales.find(target)) return *known;
  const auto size = static_cast<double>(rank);
  return alphas->alpha_of(target) / (is_rslora ? std::sqrt(size) : size);
}

}  // namespace shard
