#include "formats/parts/quantization/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

constexpr std::int64_t kMaxBytes = 16 << 20;
constexpr std::string_view kConfig = "config.json", kPartEnd = "_config";
constexpr int kMostLevels = 8;

/// Walks the objects of one text.
class Walk {
 public:
  Walk(std::string_view text, const std::string& file)
      : json_(text.data(), text.data() + text.size(), file, FindingKind::kBadHeader) {
    json_.take_python_numbers();
  }

  /// \param is_all  the whole text is about quantization
  QuantizationFacts run(bool is_all) {
    if (json_.is_next('{')) {
      object(false, is_all, 0);
    } else {
      json_.skip();
    }
    json_.finish();
    return facts_;
  }

 private:
  void take_ignored() {
    json_.enter_array();
    for (bool is_first = true; json_.next_element(is_first);) {
      if (!json_.is_next('"')) {
        json_.skip();
        continue;
      }
      const std::string_view raw = json_.string();
      facts_.add_ignored(json_.has_escapes() ? json_.decode(raw) : std::string(raw));
    }
  }

  /// compressed-tensors applies transforms of weights before it stores them, and those of inputs in the model. Those of
  /// queries and keys cancel each other. AutoRound and GPTQModel rotate inputs in the model.
  /// \returns false if the member is about something else
  bool take_transforms(std::string_view name) {
    const bool is_rotation = name == "rotation_config" || name == "rotation";
    if (!is_rotation && name != "transform_config") return false;
    const std::string_view text = value();
    const auto has = [&](std::string_view place) { return text.find(place) != std::string_view::npos; };
    const bool is_none = text.empty() || text == "null" || text == "false" || text == "{}";
    const bool transforms = is_rotation ? !is_none : has("\"input\"") || has("\"output\"");
    facts_.transforms_inputs = facts_.transforms_inputs || transforms;
    return true;
  }

  /// A value as spelled in the text, without its quotes.
  std::string_view value() {
    const std::string_view value = json_.raw_value();
    const std::size_t first = value.find_first_not_of(" \t\r\n\""), last = value.find_last_not_of(" \t\r\n\"");
    return first == std::string_view::npos ? std::string_view() : value.substr(first, last - first + 1);
  }

  /// \param states     whether the object is about quantization itself.
  /// \param is_scheme  whether it may have numbers of a scheme.
  void object(bool states, bool is_scheme, int level) {
    facts_.is_quantized = facts_.is_quantized || states;
    json_.enter_object();
    QuantizationScheme scheme;
    std::string_view key;
    for (bool is_first = true; json_.next_key(key, is_first);) {
      const std::string_view name = key;
      if (is_scheme && take_transforms(name)) continue;
      const bool is_about_it = name == "quantization_config" || name == "compression_config" || name == "quantization";
      const bool is_of_weights = is_scheme && !name.ends_with("activations") && !name.starts_with("kv_cache");
      const bool is_part = is_about_it || is_of_weights || name.ends_with(kPartEnd);
      if (is_part && level < kMostLevels && json_.is_next('{')) {
        object(is_about_it, is_about_it || is_of_weights, level + 1);
        continue;
      }
      if (name == "ignore" && is_scheme && json_.is_next('[')) {
        take_ignored();
        continue;
      }
      const std::string_view found = value();
      const bool is_method = name == "quant_method" || name == "quant_algo" || name == "quant_type";
      if (found == "null" || found.empty()) continue;
      if (is_method && facts_.method.empty()) facts_.method = found;
      if (is_scheme) take_statement(name, found, scheme);
    }
    if (scheme != QuantizationScheme()) facts_.add(std::move(scheme));
  }

  static std::vector<std::int64_t> numbers_in(std::string_view text) {
    std::vector<std::int64_t> numbers;
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at != end;) {
      std::int64_t number = 0;
      const auto [stopped, failure] = std::from_chars(at, end, number);
      if (failure == std::errc()) numbers.push_back(number);
      at = failure == std::errc::invalid_argument ? at + 1 : stopped;
    }
    return numbers;
  }

  /// AutoRound's `packing_format` in the words of AWQ and GPTQ. Without these names, zero points are stored unchanged.
  static std::string_view format_of_packing(std::string_view packing) {
    const auto has = [&](std::string_view word) { return packing.find(word) != std::string_view::npos; };
    if (has("awq")) return "gemm";
    const bool is_first_version = has("gptq") ? !has("gptqmodel") : packing == "auto";
    return is_first_version ? "gptq" : "gptq_v2";
  }

  static void take_statement(std::string_view name, std::string_view found, QuantizationScheme& scheme) {
    const bool is_word = !found.empty() && (found.front() < '0' || found.front() > '9');  // "version": "0.9.1"
    if (name == "format" || name == "checkpoint_format" || (name == "version" && is_word)) scheme.format = found;
    if (name == "packing_format") scheme.format = format_of_packing(found);
    if (name == "is_marlin_format" && found == "true") scheme.format = "marlin";
    if (name == "strategy") scheme.strategy = found;
    if (name == "data_type") scheme.numbers = found;
    if (name == "weight_scale_semantics" && found == "inverse") scheme.divides = true;
    if (name == "scale_fmt" && found == "ue8m0") scheme.has_powers = true;
    if (found == "true" || found == "false") {
      if (name == "symmetric") scheme.is_symmetric = found == "true";
      if (name == "desc_act" || name == "actorder") scheme.is_reordered = found == "true";
    }
    // compressed-tensors: "weight" reorders only the search for codes, and stores no index.
    if (name == "actorder" && (found == "group" || found == "dynamic")) scheme.is_reordered = true;
    if (name == "actorder" && (found == "weight" || found == "static")) scheme.is_reordered = false;
    const std::vector<std::int64_t> numbers = numbers_in(found);
    if (name == "weight_block_size" || name == "block_structure") scheme.block = numbers;
    if (numbers.size() != 1) return;
    if (name == "bits" || name == "num_bits" || name == "w_bit") scheme.bits = numbers.front();
    if (name == "group_size" || name == "q_group_size") scheme.group_size = numbers.front();
  }

  JsonCursor json_;
  QuantizationFacts facts_;
};

/// Copies the text of an object without some members.
class PlainConfig {
 public:
  PlainConfig(std::string_view text, const std::string& file, DType dtype)
      : text_(text), json_(text.data(), text.data() + text.size(), file, FindingKind::kBadHeader), dtype_(dtype) {
    json_.take_python_numbers();
  }

  std::string run() {
    object(0);
    const std::size_t end = here();
    json_.finish();
    return std::move(out_).append(text_.substr(end));
  }

 private:
  std::size_t here() const { return static_cast<std::size_t>(json_.position()); }

  /// Appends all from `here` to the object's end. White space before each member is that before the first one, so that
  /// lines stay lines.
  void object(int level) {
    const std::size_t begin = here();
    json_.enter_object();
    std::size_t last = here();  // Behind the last member or the brace.
    out_.append(text_.substr(begin, last - begin));
    std::string_view space, key;
    bool has_any = false, is_before_first = true;
    for (bool is_first = true; json_.next_key(key, is_first);) {
      const auto at = static_cast<std::size_t>(key.data() - text_.data()) - 1;
      if (is_before_first) space = text_.substr(last, at - last);
      is_before_first = false;
      // MLX also states it as "quantization".
      const bool is_removed = key == "quantization_config" || key == "compression_config" || key == "quantization";
      const std::size_t value = here();
      if (is_removed) {
        json_.skip();
        last = here();
        continue;
      }
      if (has_any) out_ += ',';
      out_.append(space).append(text_.substr(at, value - at));
      has_any = true;
      member(key, level);
      last = here();
    }
    out_.append(text_.substr(last, here() - last));
  }

  /// Appends the value of a member.
  void member(std::string_view name, int level) {
    if (name.ends_with(kPartEnd) && level < kMostLevels && json_.is_next('{')) return object(level + 1);
    const std::size_t begin = here();
    json_.skip();
    const std::string_view value = text_.substr(begin, here() - begin);
    const std::size_t quote = value.find('"');
    const bool is_dtype = (name == "dtype" || name == "torch_dtype") && quote != std::string_view::npos;
    out_.append(is_dtype ? value.substr(0, quote) : value);
    if (is_dtype) out_.append(fmt::format("\"{}\"", dtype_name(dtype_)));
  }

  std::string_view text_;
  JsonCursor json_;
  DType dtype_;
  std::string out_;
};

/// Facts from one file; none if it cannot be read as JSON.
QuantizationFacts facts_of(const SourceStore& store, const std::string& folder, std::string_view name) try {
  const std::string path = join_path(folder, std::string(name));
  if (!store.is_file(path)) return {};
  const std::string text = whole_text(*store.open_below(folder, std::string(name)), kMaxBytes);
  QuantizationFacts facts = Walk(text, path).run(name != kConfig);
  facts.is_quantized = facts.is_quantized || name != kConfig;
  return facts;
} catch (const Error& error) {
  if (!is_about_content(error)) throw;
  return {};
}

}  // namespace

QuantizationFacts parse_quantization(std::string_view text, const std::string& file) {
  return Walk(text, file).run(false);
}

std::string plain_config(std::string_view text, const std::string& file, DType dtype) {
  return PlainConfig(text, file, dtype).run();
}

QuantizationFacts read_quantization(const SourceStore& store, const std::string& folder) {
  QuantizationFacts facts = facts_of(store, folder, kConfig);
  for (const std::string_view name : kQuantizationFiles) {
    const QuantizationFacts more = facts_of(store, folder, name);
    facts.is_quantized = facts.is_quantized || more.is_quantized;
    facts.transforms_inputs = facts.transforms_inputs || more.transforms_inputs;
    if (facts.method.empty()) facts.method = more.method;
    for (const QuantizationScheme& scheme : more.schemes) facts.add(scheme);
    for (const std::string& entry : more.ignored) facts.add_ignored(entry);
  }
  return facts;
}

}  // namespace shard
