#include "formats/torch/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/torch/placed_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::torch_save {

namespace {

constexpr std::string_view kIndexName = "pytorch_model.bin.index.json";

void check_names(const Catalog& target) {
  const auto twice = std::ranges::adjacent_find(target.tensors, {}, &Tensor::name);
  if (twice == target.tensors.end()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("two tensors are named '{}', and several files are flat", twice->name))
      .of_tensor(twice->name)
      .hint("write one file, or rename one with --rename");
}

const StoredTensor& stored_of(const Catalog& target, const Tensor& tensor) {
  return target.stored[target.chunks[tensor.first_chunk].stored];
}

// A dict of names, or for a bare tensor itself: what a target without a tree becomes.
Value* flat_root(Catalog& target, std::span<const std::uint32_t> tensors, std::span<const Object> objects) {
  Arena& arena = *target.arena;
  std::vector<Value*> items;
  for (const std::uint32_t i : tensors) {
    items.push_back(make_string(arena, target.tensors[i].name));
    items.push_back(make_tensor(arena, i));
  }
  for (const Object& object : objects) {
    if (object.value == nullptr) continue;
    items.push_back(make_string(arena, object.name));
    items.push_back(object.value);
  }
  if (items.size() == 2 && items[0]->text.empty()) return items[1];
  return make_list(arena, ValueKind::kDict, items);
}

std::vector<std::vector<std::uint32_t>> tensors_by_file(const Catalog& target) {
  std::vector<std::vector<std::uint32_t>> by_file(target.files.size());
  for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
    by_file[target.storages[stored_of(target, target.tensors[i]).storage].file].push_back(i);
  }
  return by_file;
}

class TorchWriter final : public Writer {
 public:
  explicit TorchWriter(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    const std::uint32_t count = static_cast<std::uint32_t>(target.files.size());
    if (options_.single_file && count > 1) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} files do not fit into one", count))
          .hint("name a folder as the destination");
    }
    check_objects(target);
    keys_.assign(target.storages.size(), kNoIndex);
    const std::vector<std::vector<std::uint32_t>> by_file = tensors_by_file(target);
    if (count == 1) {
      const std::string name = options_.single_file ? options_.base_name : "pytorch_model.bin";
      place_file(target, 0, name,
                 target.root != nullptr ? *target.root : *flat_root(target, by_file[0], target.objects));
      return;
    }
    check_names(target);
    warn_of_losses(target);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("pytorch_model-{:05}-of-{:05}.bin", i + 1, count);
      const std::span<const Object> objects =
          i == 0 ? std::span<const Object>(target.objects) : std::span<const Object>();
      place_file(target, i, name, *flat_root(target, by_file[i], objects));
    }
    place_index(target);
  }

  bool needs_checksums() const override { return true; }

  void finish(const Catalog&, const Checksums& checksums, std::span<FileWriter* const> files) override {
    for (std::size_t i = 0; i < saved_.size(); ++i) saved_[i].write(checksums, *files[i]);
    if (!index_.empty()) files[saved_.size()]->write_at(0, std::as_bytes(std::span(index_)));
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  void place_file(Catalog& target, std::uint32_t file, const std::string& name, const Value& root) {
    PlacedZip& zip = saved_.emplace_back(target, keys_);
    const auto view = [&](std::int64_t number) {
      return zip.view_of(stored_of(target, target.tensors[static_cast<std::size_t>(number)]));
    };
    zip.place(target, file, name, dump(root, view));
  }

  static void warn_of_losses(Catalog& target) {
    if (!target.objects.empty()) {
      target.warnings.push_back("objects are written to the first file, where other loaders do not expect them");
    }
    const bool is_nested = std::ranges::any_of(target.tensors, [](const Tensor& t) { return !t.path.empty(); });
    if (is_nested) target.warnings.push_back("several files are flat: nested names are joined by '.'");
  }

  /// pytorch_model.bin.index.json, as Hugging Face's libraries write it.
  void place_index(Catalog& target) {
    std::int64_t total = 0;
    for (const Storage& storage : target.storages) total = checked_add(total, storage.bytes);
    index_ = fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
    std::string_view separator = "\n    ";
    for (const Tensor& tensor : target.tensors) {
      const std::uint32_t file = target.storages[stored_of(target, tensor).storage].file;
      fmt::format_to(std::back_inserter(index_), "{}{}: \"{}\"", separator, json_string(tensor.name),
                     target.files[file].path);
      separator = ",\n    ";
    }
    index_ += target.tensors.empty() ? "}\n}\n" : "\n  }\n}\n";
    target.files.push_back({std::string(kIndexName), static_cast<std::int64_t>(index_.size()), -1});
  }

  static std::string json_string(std::string_view text) {
    try {
      return nlohmann::json(text).dump(-1, ' ', true);
    } catch (const nlohmann::json::exception&) {
      throw Error(ErrorCode::kUnsupported, "a tensor's name is not valid UTF-8, which the index asks for")
          .of_tensor(text)
          .hint("rename it with --rename");
    }
  }

  WriteOptions options_;
  std::vector<PlacedZip> saved_;     ///< One a data file.
  std::vector<std::uint32_t> keys_;  ///< Of each storage in its file, once its pickle has named it.
  std::string index_;                ///< Content of the index, or empty.
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return std::make_unique<TorchWriter>(options);
}

}  // namespace shard::torch_save
