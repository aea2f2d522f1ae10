#include "formats/safetensors/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/parts/json/json_cursor.h"
#include "formats/safetensors/header.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"

namespace shard::safetensors {

namespace {

constexpr std::int64_t kProbeBytes = 4096;

/// A document inside a string of the header: one object with an entry per tensor.
class NamedDocument {
 public:
  NamedDocument(const std::string& text, const std::string& key, const std::string& file)
      : file_(file), key_(key), json_(text.c_str(), text.c_str() + text.size(), file, FindingKind::kBadHeader) {}

  /// Calls `read_value` for each member, with the cursor at its value.
  template <class ReadValue>
  void for_each(const ReadValue& read_value) {
    json_.enter_object();
    bool is_first = true;
    std::string_view name;
    std::string decoded;
    while (json_.next_name(name, decoded, is_first)) read_value(name);
    json_.finish();
  }

  std::span<const std::int64_t> read_dims(std::string_view name) { return read_numbers(name, first_); }

  /// The fields of one entry of DCP_SHARDING_INFO. The views are valid until the next call.
  ShardingEntry read_sharding(std::string_view name) {
    ShardingEntry entry{name, name, {}, std::nullopt};
    bool has_offsets = false, has_tensor = false;
    const auto once = [&](bool is_there, std::string_view field) {
      if (is_there) fail(name, fmt::format("has two fields {}", field));
    };
    json_.enter_object();
    std::string_view field;
    std::string decoded;
    for (bool is_first = true; json_.next_name(field, decoded, is_first);) {
      if (field == "saved_offsets") {
        once(std::exchange(has_offsets, true), field);
        entry.offsets = read_numbers(name, first_);
      } else if (field == "global_shape") {
        once(entry.whole_shape.has_value(), field);
        entry.whole_shape = read_numbers(name, second_);
      } else if (field == "logical_fqn") {
        once(std::exchange(has_tensor, true), field);
        entry.tensor = read_text();
      } else {
        refuse_field(name, field);
      }
    }
    if (!has_offsets) fail(name, "lacks saved_offsets");
    return entry;
  }

 private:
  using Numbers = std::vector<std::int64_t>;

  std::span<const std::int64_t> read_numbers(std::string_view name, Numbers& numbers) {
    numbers.clear();
    json_.enter_array();
    for (bool is_first = true; json_.next_element(is_first);) {
      if (numbers.size() == static_cast<std::size_t>(kMaxDims)) {
        fail(name, fmt::format("has more than {} numbers", kMaxDims));
      }
      numbers.push_back(json_.integer());
    }
    return numbers;
  }

  std::string_view read_text() {
    const std::string_view raw = json_.string();
    if (!json_.has_escapes()) return raw;
    text_ = json_.decode(raw);
    return text_;
  }

  [[noreturn]] void refuse_field(std::string_view name, std::string_view field) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot read {}: tensor '{}' has the unknown field '{}'", key_, name, field))
        .in_file(file_)
        .of_tensor(name)
        .because("a newer torch wrote it, and the field may change the positions of the pieces");
  }

  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    throw Error(ErrorCode::kCorruption, fmt::format("{}: tensor '{}' {}", key_, name, what))
        .in_file(file_)
        .of_tensor(name)
        .of_kind(FindingKind::kBadHeader);
  }

  const std::string& file_;
  const std::string& key_;
  JsonCursor json_;
  Numbers first_, second_;
  std::string text_;
};

/// Runs `read`. Adds the metadata's key to the error of a malformed text.
template <class Read>
void in_document(const std::string& key, const Read& read) {
  try {
    read();
  } catch (Error& error) {
    if (!error.tensor().empty()) throw;
    throw Error(error.because(fmt::format("this is in the text of {} in the header's __metadata__", key)));
  }
}

}  // namespace

void merge_metadata(Catalog& catalog, const MetadataMap& metadata, const std::string& file) {
  FirstNames differing;
  for (const auto& [key, value] : metadata) {
    const auto [at, is_new] = catalog.metadata.try_emplace(key, value);
    if (!is_new && at->second != value) differing.add(key);
  }
  if (differing.count() == 0) return;
  catalog.warnings.push_back(fmt::format("__metadata__ of {} differs from that of an earlier file, which is kept: {}",
                                         file, differing.text()));
}

bool names_sharding_info(const RandomReader& file) {
  if (!looks_like_header(file)) return false;
  std::string head(static_cast<std::size_t>(std::min(file.size() - kLengthBytes, kProbeBytes)), '\0');
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(head)));
  const std::string key = fmt::format("\"{}\"", kShardingInfoKey);
  std::size_t at = head.find(key);
  if (at == std::string::npos) return false;
  at = head.find_first_not_of(" \t\r\n:", at + key.size());
  return at != std::string::npos && head[at] == '"';  // A tensor with that name would have an object as its value.
}

void parse_sharding_info(const std::string& text, const std::string& file, const OnSharding& on_entry) {
  const std::string key = kShardingInfoKey;
  in_document(key, [&] {
    NamedDocument document(text, key, file);
    document.for_each([&](std::string_view name) { on_entry(document.read_sharding(name)); });
  });
}

void parse_dims_by_name(const std::string& text, const std::string& key, const std::string& file,
                        const OnDims& on_dims) {
  in_document(key, [&] {
    NamedDocument document(text, key, file);
    document.for_each([&](std::string_view name) { on_dims(name, document.read_dims(name)); });
  });
}

}  // namespace shard::safetensors
