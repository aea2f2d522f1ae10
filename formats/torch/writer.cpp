#include "formats/torch/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/torch/saved_file.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

constexpr std::string_view kIndexName = "pytorch_model.bin.index.json";

// The top folder inside the zip: the file's name without its last extension, as torch takes it. Names that torch
// cannot use, or opens as a stream, get what streams get.
std::string top_folder(std::string_view file_name) {
  const std::string_view stem = file_name.substr(0, std::min(file_name.rfind('.'), file_name.size()));
  const bool is_plain =
      std::ranges::all_of(stem, [](char c) { return c >= ' ' && c < '\x7f' && c != '\\' && c != '/'; });
  return stem.empty() || stem == "." || stem == ".." || !is_plain ? "archive" : std::string(stem);
}

void check_objects(const Catalog& target) {
  for (const Object& object : target.objects) {
    if (object.value == nullptr) continue;
    const std::string_view kind = hidden_tensor_kind(*object.value);
    if (kind.empty()) continue;
    Error error(ErrorCode::kUnsupported, fmt::format("'{}' cannot be written", object.name));
    error.of_tensor(object.name).hint("leave out what is no plain tensor with --objects drop");
    if (kind == "attribute") {
      error.because(fmt::format("it is an object ({}) that holds tensors as attributes", type_name(*object.value)));
    } else {
      const bool is_storage = kind.starts_with("storage");
      error.because(
          fmt::format("it is or holds a {}{}; only plain tensors can be written", kind, is_storage ? "" : " tensor"));
    }
    throw Error(error);
  }
}

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
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      std::vector<std::uint32_t> crcs;
      for (const std::uint32_t storage : saved_[i].storages) crcs.push_back(checksums.crc32_of(storage));
      for (const SavedZip::Span& span : saved_[i].zip->frame(crcs)) {
        files[i]->write_at(span.offset, std::as_bytes(std::span(span.content)));
      }
    }
    if (!index_.empty()) files[saved_.size()]->write_at(0, std::as_bytes(std::span(index_)));
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  struct Saved {
    std::unique_ptr<SavedZip> zip;
    std::vector<std::uint32_t> storages;  ///< By key: the target's storage.
  };

  void place_file(Catalog& target, std::uint32_t file, const std::string& name, const Value& root) {
    Saved saved;
    std::string data_pkl = dump(root, [&](std::int64_t number) {
      const StoredTensor& stored = stored_of(target, target.tensors[static_cast<std::size_t>(number)]);
      std::uint32_t& key = keys_[stored.storage];
      if (key == kNoIndex) {  // Keys count in the order in which the pickle names storages, as torch's do.
        key = static_cast<std::uint32_t>(saved.storages.size());
        saved.storages.push_back(stored.storage);
      }
      return view_of(target, stored, key);
    });
    std::vector<std::int64_t> sizes;
    for (const std::uint32_t storage : saved.storages) sizes.push_back(target.storages[storage].bytes);
    saved.zip = std::make_unique<SavedZip>(top_folder(name), std::move(data_pkl), sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Storage& storage = target.storages[saved.storages[i]];
      assert(storage.file == file);
      storage.offset = saved.zip->data_offset(i);
    }
    target.files[file].path = name;
    target.files[file].bytes = saved.zip->total_bytes();
    saved_.push_back(std::move(saved));
  }

  static TensorView view_of(const Catalog& target, const StoredTensor& stored, std::uint32_t key) {
    const Storage& storage = target.storages[stored.storage];
    TensorView view;
    view.dtype = stored.dtype;
    view.shape = stored.shape;
    view.strides = stored.strides;
    view.first = stored.first;
    view.key = target.arena->copy(std::to_string(key));
    view.location = target.locations[storage.location];
    view.storage_bytes = storage.bytes;
    view.requires_grad = stored.requires_grad;
    return view;
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
  std::vector<Saved> saved_;         ///< One a data file.
  std::vector<std::uint32_t> keys_;  ///< Of each storage in its file, once its pickle has named it.
  std::string index_;                ///< Content of the index, or empty.
};

}  // namespace

std::unique_ptr<Writer> make_torch_writer(const WriteOptions& options) {
  return std::make_unique<TorchWriter>(options);
}

}  // namespace shard::torch_save
