#include "libshard/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/parts/hf_index/index_file.h"
#include "formats/torch/format.h"
#include "formats/torch/placed_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

void check_names(const Catalog& target) {
  const auto twice = std::ranges::adjacent_find(target.tensors, {}, &Tensor::name);
  if (twice == target.tensors.end()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot write several files: two tensors are named '{}'", twice->name))
      .of_tensor(twice->name)
      .because("several files are flat, so tensors are distinguished by names, not by paths")
      .suggest(Remedy::kRename, twice->name);
}

const StoredTensor& stored_of(const Catalog& target, const Tensor& tensor) { return target.stored_of(tensor); }

// The dict of names for a target without a tree.
Value* flat_dict(Catalog& target, std::span<const std::uint32_t> tensors, std::span<const Object> objects) {
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
  return make_list(arena, ValueKind::kDict, items);
}

// The root of a single file: the tree, or the names if there is no tree. A single tensor with the empty name is bare.
Value* root_of(Catalog& target, std::span<const std::uint32_t> tensors) {
  if (target.root != nullptr) return target.root;
  Value* dict = flat_dict(target, tensors, target.objects);
  const bool is_bare = dict->items().size() == 2 && dict->items()[0]->text().empty();
  return is_bare ? dict->items()[1] : dict;
}

std::vector<std::vector<std::uint32_t>> tensors_by_file(const Catalog& target) {
  std::vector<std::vector<std::uint32_t>> by_file(target.files.size());
  for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
    by_file[target.storages[stored_of(target, target.tensors[i]).storage].file].push_back(i);
  }
  return by_file;
}

class TorchWriter final : public ZipsWriter {
 public:
  explicit TorchWriter(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    const std::uint32_t count = static_cast<std::uint32_t>(target.files.size());
    if (options_.single_file && count > 1) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot write {} files as one", count))
          .suggest(Remedy::kNameFolder);
    }
    check_contents(target);
    const std::vector<std::vector<std::uint32_t>> by_file = tensors_by_file(target);
    const bool is_named = !target.files.front().path.empty();
    if (count == 1 && !is_named) {
      const std::string name = options_.single_file ? options_.base_name : stem() + ".bin";
      place_file(target, name, root_of(target, by_file[0]));
      return;
    }
    if (is_named) return place_named(target, by_file);
    check_names(target);
    warn_of_losses(target);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("{}-{:05}-of-{:05}.bin", stem(), i + 1, count);
      const std::span<const Object> objects =
          i == 0 ? std::span<const Object>(target.objects) : std::span<const Object>();
      place_file(target, name, flat_dict(target, by_file[i], objects));
    }
    place_index(target);
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  std::string stem() const { return options_.base_name.empty() ? "pytorch_model" : options_.base_name; }

  /// Places files of ranks, which may contain equal names.
  void place_named(Catalog& target, const std::vector<std::vector<std::uint32_t>>& by_file) {
    for (std::uint32_t i = 0; i < by_file.size(); ++i) {
      const std::string name = target.files[i].path;
      Value* dict = flat_dict(target, by_file[i], {});
      for (auto key = options_.root.rbegin(); key != options_.root.rend(); ++key) {
        const std::vector<Value*> item{make_string(*target.arena, *key), dict};
        dict = make_list(*target.arena, ValueKind::kDict, item);
      }
      place_file(target, name, dict);
    }
  }

  void place_file(Catalog& target, const std::string& name, const Value* root) {
    roots_.push_back(root);
    place_zip(target, name);
  }

  PlacedZip::DumpPickle pickle_of(const Catalog& target, std::uint32_t file) override {
    return [this, &target, file](const pickle::Sink& sink) {
      const auto view = [&](std::int64_t number) {
        return zip(file).view_of(target, stored_of(target, target.tensors[static_cast<std::size_t>(number)]));
      };
      dump(*roots_[file], view, {}, sink);
    };
  }

  static void warn_of_losses(Catalog& target) {
    if (!target.objects.empty()) {
      target.warnings.emplace_back("objects are written to the first file, where other loaders do not expect them");
    }
    const bool is_nested = std::ranges::any_of(target.tensors, [](const Tensor& t) { return !t.path.empty(); });
    if (is_nested) target.warnings.emplace_back("several files are flat: nested names are joined by '.'");
  }

  void place_index(Catalog& target) {
    std::int64_t total = 0;
    for (const Storage& storage : target.storages) total = checked_add(total, storage.bytes);
    std::vector<hf_index::IndexEntry> entries;
    for (const Tensor& tensor : target.tensors) {
      entries.push_back({tensor.name, target.files[target.storages[stored_of(target, tensor).storage].file].path});
    }
    place_text(target, stem() + ".bin.index.json", hf_index::dump_index(total, entries));
  }

  WriteOptions options_;
  std::vector<const Value*> roots_;  ///< The root of each data file; stored in the target's arena.
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) { return std::make_unique<TorchWriter>(options); }

}  // namespace shard::torch_save
