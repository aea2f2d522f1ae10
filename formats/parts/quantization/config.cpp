#include "formats/parts/quantization/config.h"

#include <algorithm>
#include <vector>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::int64_t kMaxBytes = 16 << 20;
constexpr std::string_view kConfig = "config.json", kPartEnd = "_config";
constexpr int kMostLevels = 8;

/// Walks the objects of one text.
class Walk {
 public:
  Walk(std::string_view text, const std::string& file)
      : text_(text), json_(text.data(), text.data() + text.size(), file, FindingKind::kBadHeader) {
    json_.take_python_numbers();
  }

  QuantizationFacts run() {
    if (is_object()) {
      object(false, 0);
    } else {
      json_.skip();
    }
    json_.finish();
    return facts_;
  }

 private:
  bool is_object() const {
    const std::size_t at = text_.find_first_not_of(" \t\r\n", static_cast<std::size_t>(json_.position()));
    return at != std::string_view::npos && text_[at] == '{';
  }

  /// A value as spelled in the text, without its quotes.
  std::string_view value() {
    const auto begin = static_cast<std::size_t>(json_.position());
    json_.skip();
    std::string_view value = text_.substr(begin, static_cast<std::size_t>(json_.position()) - begin);
    const std::size_t first = value.find_first_not_of(" \t\r\n\""), last = value.find_last_not_of(" \t\r\n\"");
    return first == std::string_view::npos ? std::string_view() : value.substr(first, last - first + 1);
  }

  /// \param states  whether the object is about quantization itself.
  void object(bool states, int level) {
    facts_.is_quantized = facts_.is_quantized || states;
    json_.enter_object();
    std::string_view key;
    for (bool is_first = true; json_.next_key(key, is_first);) {
      const std::string_view name = key;
      const bool is_about_it = name == "quantization_config" || name == "compression_config" || name == "quantization";
      const bool is_part = is_about_it || name.ends_with(kPartEnd);
      if (is_part && level < kMostLevels && is_object()) {
        object(is_about_it, level + 1);
        continue;
      }
      const std::string_view found = value();
      const bool is_method = name == "quant_method" || name == "quant_algo" || name == "quant_type";
      if (is_method && found != "null" && !found.empty() && facts_.method.empty()) facts_.method = found;
    }
  }

  std::string_view text_;
  JsonCursor json_;
  QuantizationFacts facts_;
};

/// Facts from one file; none if it cannot be read as JSON.
QuantizationFacts facts_of(const SourceStore& store, const std::string& folder, std::string_view name) try {
  const std::string path = join_path(folder, std::string(name));
  if (store.status(path).kind != FileKind::kFile) return {};
  const std::vector<std::byte> bytes = read_whole(*store.open_below(folder, std::string(name)), kMaxBytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  QuantizationFacts facts = parse_quantization(text, path);
  facts.is_quantized = facts.is_quantized || name != kConfig;
  return facts;
} catch (const Error& error) {
  if (error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kPeer) throw;
  return {};
}

}  // namespace

QuantizationFacts parse_quantization(std::string_view text, const std::string& file) { return Walk(text, file).run(); }

QuantizationFacts read_quantization(const SourceStore& store, const std::string& folder) {
  QuantizationFacts facts = facts_of(store, folder, kConfig);
  for (const std::string_view name : kQuantizationFiles) {
    const QuantizationFacts more = facts_of(store, folder, name);
    facts.is_quantized = facts.is_quantized || more.is_quantized;
    if (facts.method.empty()) facts.method = more.method;
  }
  return facts;
}

}  // namespace shard
