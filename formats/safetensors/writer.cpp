#include "formats/safetensors/writer.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "formats/safetensors/header_writer.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::safetensors {

namespace {

class SafetensorsWriter final : public Writer {
 public:
  explicit SafetensorsWriter(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    if (options_.single_file && target.files.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} files do not fit into one", target.files.size()))
          .hint("name a folder as the destination");
    }
    check_tensors(target);
    target.metadata.try_emplace("format", "pt");
    if (std::string aliases = aliases_text(target); !aliases.empty()) {
      target.metadata[kAliasesNote] = std::move(aliases);
    }
    std::vector<std::vector<OutgoingTensor>> by_file = tensors_by_file(target);
    for (std::size_t i = 0; i < by_file.size(); ++i) {
      File& file = target.files[i];
      file.path = file_name(i, by_file.size());
      heads_.push_back(place_file(by_file[i], target.metadata, file));
      total_bytes_ = checked_add(total_bytes_, file.bytes - static_cast<std::int64_t>(heads_.back().size()));
    }
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

  static std::vector<std::vector<OutgoingTensor>> tensors_by_file(Catalog& target) {
    std::vector<std::vector<OutgoingTensor>> by_file(target.files.size());
    for (const Tensor& tensor : target.tensors) {
      Storage& storage = storage_of(target, tensor);
      by_file[storage.file].push_back({&tensor, tensor.shape, &storage});
    }
    return by_file;
  }

  std::string file_name(std::size_t file, std::size_t count) const {
    if (options_.single_file) return options_.base_name;
    return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, count);
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

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return std::make_unique<SafetensorsWriter>(options);
}

}  // namespace shard::safetensors
