#include "formats/safetensors/writer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "formats/safetensors/header.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::safetensors {

namespace {

constexpr std::size_t kAlignment = 8;  ///< Of the data's first byte, as the reference writes.

/// A string between quotes; `ascii` escapes all else, as Python's json does.
void append_string(std::string& out, std::string_view text, bool ascii) {
  const auto is_plain = [ascii](char c) { return c >= ' ' && c != '"' && c != '\\' && !(ascii && c == 0x7F); };
  if (std::ranges::all_of(text, is_plain)) {  // Nearly always; a negative char is no plain one.
    out.append("\"").append(text).append("\"");
  } else {
    out += nlohmann::json(text).dump(-1, ' ', ascii);
  }
}

std::size_t dtype_order(DType dtype) {
  const std::span<const HeaderDType> all = header_dtypes();
  return static_cast<std::size_t>(std::ranges::find(all, dtype, &HeaderDType::dtype) - all.begin());
}

void check_text(std::string_view text, const char* what) {
  if (simdjson::validate_utf8(text.data(), text.size())) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("a {} is not valid UTF-8, which safetensors asks for", what))
      .of_tensor(text)
      .hint("rename it with --rename");
}

void check_tensor(const Tensor& tensor) {
  check_text(tensor.name, "tensor's name");
  if (tensor.name == "__metadata__") {
    throw Error(ErrorCode::kUnsupported, "safetensors keeps the name __metadata__ for itself")
        .of_tensor(tensor.name)
        .hint("rename it with --rename");
  }
  if (dtype_order(tensor.dtype) == header_dtypes().size()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("safetensors has no dtype {} (tensor '{}')", dtype_name(tensor.dtype), tensor.name))
        .of_tensor(tensor.name)
        .hint("convert it with --cast, leave it out with --exclude, or write another format");
  }
  if (tensor.dtype == DType::kFloat4E2m1fnX2 && tensor.shape.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("safetensors cannot hold '{}': float4 without dimensions", tensor.name))
        .of_tensor(tensor.name);
  }
}

void append_entry(std::string& out, const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  append_string(out, tensor.name, false);
  fmt::format_to(std::back_inserter(out), ":{{\"dtype\":\"{}\",\"shape\":[",
                 header_dtypes()[dtype_order(tensor.dtype)].name);
  for (int d = 0; d < tensor.shape.size(); ++d) {
    const bool doubles = tensor.dtype == DType::kFloat4E2m1fnX2 && d + 1 == tensor.shape.size();
    fmt::format_to(std::back_inserter(out), "{}{}", d == 0 ? "" : ",", tensor.shape[d] * (doubles ? 2 : 1));
  }
  fmt::format_to(std::back_inserter(out), "],\"data_offsets\":[{},{}]}}", begin, end);
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string out = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    check_text(key, "key of the metadata");
    check_text(value, "value of the metadata");
    if (out.back() != '{') out += ',';
    append_string(out, key, false);
    out += ':';
    append_string(out, value, false);
  }
  return out + '}';
}

/// {"name":"the name that it shares its bytes with"} as text, or nothing.
std::string aliases_text(const Catalog& target) {
  std::string out;
  for (const Tensor& tensor : target.tensors) {
    if (tensor.alias_of == kNoIndex) continue;
    out += out.empty() ? '{' : ',';
    append_string(out, tensor.name, false);
    out += ':';
    append_string(out, target.tensors[tensor.alias_of].name, false);
  }
  return out.empty() ? out : out + '}';
}

class SafetensorsWriter final : public Writer {
 public:
  explicit SafetensorsWriter(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    if (options_.single_file && target.files.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} files do not fit into one", target.files.size()))
          .hint("name a folder as the destination");
    }
    target.metadata.try_emplace("format", "pt");
    if (std::string aliases = aliases_text(target); !aliases.empty()) {
      target.metadata["shardctl.aliases"] = std::move(aliases);
    }
    const std::vector<std::vector<std::uint32_t>> by_file = sort_tensors(target);
    const std::string metadata = metadata_text(target.metadata);
    for (std::size_t file = 0; file < by_file.size(); ++file) place_file(target, file, by_file[file], metadata);
    if (by_file.size() > 1) place_index(target);
  }

  void finish(const Catalog&, const Checksums&, std::span<FileWriter* const> files) override {
    for (std::size_t i = 0; i < heads_.size(); ++i) files[i]->write_at(0, std::as_bytes(std::span(heads_[i])));
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  static Storage& storage_of(Catalog& target, const Tensor& tensor) {
    return target.storages[target.stored[target.chunks[tensor.first_chunk].stored].storage];
  }

  /// Each file's tensors in the reference's order: dtypes descending, so that wide elements come first and every tensor
  /// is aligned, then names.
  static std::vector<std::vector<std::uint32_t>> sort_tensors(Catalog& target) {
    std::vector<std::vector<std::uint32_t>> by_file(target.files.size());
    for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
      check_tensor(target.tensors[i]);
      by_file[storage_of(target, target.tensors[i]).file].push_back(i);
    }
    for (std::vector<std::uint32_t>& tensors : by_file) {
      std::ranges::stable_sort(tensors, std::ranges::greater{},
                               [&](std::uint32_t i) { return dtype_order(target.tensors[i].dtype); });
    }
    return by_file;
  }

  std::string file_name(std::size_t file, std::size_t count) const {
    if (options_.single_file) return options_.base_name;
    return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, count);
  }

  void place_file(Catalog& target, std::size_t file, const std::vector<std::uint32_t>& tensors,
                  const std::string& metadata) {
    std::string head(kLengthBytes, '\0');
    head.append("{").append(metadata);
    std::int64_t end = 0;
    for (const std::uint32_t i : tensors) {
      Storage& storage = storage_of(target, target.tensors[i]);
      storage.offset = end;
      end = checked_add(end, storage.bytes);
      head += ',';
      append_entry(head, target.tensors[i], storage.offset, end);
    }
    head += '}';
    head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
    const std::string name = file_name(file, target.files.size());
    set_length(head, name);
    const auto data = static_cast<std::int64_t>(head.size());
    for (const std::uint32_t i : tensors) storage_of(target, target.tensors[i]).offset += data;
    target.files[file].path = name;
    target.files[file].bytes = checked_add(data, end);
    heads_.push_back(std::move(head));
    total_bytes_ = checked_add(total_bytes_, end);
  }

  static void set_length(std::string& head, const std::string& name) {
    std::size_t length = head.size() - kLengthBytes;
    if (length > static_cast<std::size_t>(kMaxHeaderBytes)) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the header would take {} bytes, safetensors allows {}", length, kMaxHeaderBytes))
          .in_file(name)
          .hint("spread the tensors over several files with --shards or --max-shard-size");
    }
    for (int i = 0; i < kLengthBytes; ++i, length >>= 8) head[static_cast<std::size_t>(i)] = static_cast<char>(length);
  }

  /// model.safetensors.index.json, as Hugging Face's libraries write it.
  void place_index(Catalog& target) {
    std::string text =
        fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes_);
    const char* separator = "\n    ";
    for (const Tensor& tensor : target.tensors) {  // By name already.
      text += std::exchange(separator, ",\n    ");
      append_string(text, tensor.name, true);
      text += ": ";
      append_string(text, target.files[storage_of(target, tensor).file].path, true);
    }
    text += target.tensors.empty() ? "}\n}\n" : "\n  }\n}\n";
    target.files.push_back({"model.safetensors.index.json", static_cast<std::int64_t>(text.size()), -1});
    heads_.push_back(std::move(text));
  }

  WriteOptions options_;
  std::vector<std::string> heads_;  ///< What stands at the beginning of each file: headers, and the whole index.
  std::int64_t total_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_safetensors_writer(const WriteOptions& options) {
  return std::make_unique<SafetensorsWriter>(options);
}

}  // namespace shard::safetensors
