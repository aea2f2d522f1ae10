/// \file
/// Per-rank torch.save files in memory, for tests: built from values, or golden ones with changed pickles.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "formats/torch_ranks/format.h"
#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/sharded_value_maker.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/box.h"
#include "libshard/exec/tensor_reader.h"
#include "tests/formats/torch_files.h"

namespace shard::testing {

/// One rank's file, made entry by entry.
class RankFileMaker {
 public:
  /// A row-major tensor.
  template <class Number>
  Value* tensor(std::vector<std::int64_t> shape, const std::vector<Number>& numbers, DType dtype) {
    torch_save::TensorView view;
    view.dtype = dtype;
    view.shape = arena_->dims(shape);
    std::vector<std::int64_t> strides(shape.size());
    row_major_strides(shape, strides);
    view.strides = arena_->dims(strides);
    view.location = "cpu";
    view.key = arena_->copy(std::to_string(views_.size()));
    view.storage_bytes = static_cast<std::int64_t>(numbers.size() * sizeof(Number));
    views_.push_back(view);
    records_.emplace_back(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
    return make_tensor(*arena_, static_cast<std::int64_t>(views_.size()) - 1);
  }
  Value* floats(std::vector<std::int64_t> shape, const std::vector<float>& numbers) {
    return tensor(std::move(shape), numbers, DType::kFloat32);
  }
  void put(const std::string& name, Value* value) {
    items_.push_back(make_string(*arena_, name));
    items_.push_back(value);
  }
  void put(const std::string& name, std::int64_t number) { put(name, make_int(*arena_, number)); }

  /// A ShardedTensor of `shape` sharded by rows, of which this rank has [begin, end).
  void put_rows(const std::string& name, std::int64_t rank, std::vector<std::pair<std::int64_t, std::int64_t>> rows,
                std::int64_t columns, const std::vector<float>& mine) {
    torch_ranks::ShardedTensorValue value;
    value.dtype = DType::kFloat32;
    value.group = {rank, rank, std::ssize(rows), std::ssize(rows)};
    std::int64_t total = 0;
    std::vector<torch_ranks::ShardBox> all;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto [begin, end] = rows[i];
      torch_ranks::ShardBox box{arena_->dims(std::vector{begin, std::int64_t{0}}),
                                arena_->dims(std::vector{end - begin, columns}),
                                arena_->copy("rank:" + std::to_string(i) + "/cpu"), static_cast<std::int64_t>(i)};
      all.push_back(box);
      if (static_cast<std::int64_t>(i) == rank) value.local.push_back({box, floats({end - begin, columns}, mine)});
      if (begin < end) total = std::max(total, end);
    }
    value.all = std::move(all);
    value.shape = arena_->dims(std::vector{total, columns});
    put(name, maker_.sharded_tensor(value));
  }

  /// A DTensor; rank number `index` of the mesh, row-major, has `local`.
  void put_dtensor(const std::string& name, std::vector<std::int64_t> shape, const Sharding& sharding,
                   std::int64_t index, Value* local) {
    torch_ranks::DTensorValue value;
    value.dtype = views_[static_cast<std::size_t>(local->number)].dtype;
    value.shape = arena_->dims(shape);
    value.local = local;
    value.sharding = sharding;
    const std::vector<std::int64_t> ranks = mesh_ranks(sharding);
    torch_ranks::PickledMesh mesh{&sharding, index, {}};
    mesh.ranks = tensor({std::ssize(ranks)}, ranks, DType::kInt64);
    put(name, maker_.dtensor(value, maker_.device_mesh(mesh)));
  }

  std::string bytes() {
    const Value* root = make_list(*arena_, ValueKind::kDict, items_);
    std::vector<NamedRecord> records{{"data.pkl", torch_save::dump(*root, [this](std::int64_t index) {
                                        return views_[static_cast<std::size_t>(index)];
                                      })}};
    for (std::size_t i = 0; i < records_.size(); ++i) records.push_back({"data/" + std::to_string(i), records_[i]});
    records.push_back({"version", "3\n"});
    return pack(records);
  }
  Arena& arena() { return *arena_; }

 private:
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  torch_ranks::ShardedValueMaker maker_{*arena_};
  std::vector<torch_save::TensorView> views_;
  std::vector<std::string> records_;
  std::vector<Value*> items_;
};

/// Files in memory, opened as torch-ranks.
class RankFolder {
 public:
  RankFolder() = default;
  /// A golden checkpoint: "2.11.0/ranks_sharded_r2".
  explicit RankFolder(const std::string& golden) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(SHARD_TEST_DATA) + "/golden/" + golden)) {
      std::ifstream file(entry.path(), std::ios::binary);
      put(entry.path().filename().string(), {std::istreambuf_iterator<char>(file), {}});
    }
  }

  void put(const std::string& name, const std::string& content) { contents_[name] = content; }
  void put(const std::string& name, RankFileMaker& maker) { put(name, maker.bytes()); }
  void remove(const std::string& name) { contents_.erase(name); }
  const std::string& content(const std::string& name) const { return contents_.at(name); }

  /// Pickles a file again after `change`.
  void edit(const std::string& name, const std::function<void(Arena&, Value&)>& change) {
    contents_[name] = repickled(contents_.at(name), change);
  }

  std::unique_ptr<Reader> open(const OpenOptions& options = {}) { return kTorchRanksFormat.open(source(), options); }
  std::unique_ptr<Reader> open_files(const std::vector<std::string>& names, const OpenOptions& options = {}) {
    Source all = source();
    all.paths.clear();
    for (const std::string& name : names) all.paths.push_back("/c/" + name);
    return kTorchRanksFormat.open(all, options);
  }
  /// The folder, in a file system that this owns.
  Source source() {
    files_ = std::make_unique<MemoryFiles>();
    for (const auto& [name, content] : contents_) files_->put("/c/" + name, content);
    return {&files_->fs(), {"/c"}};
  }

 private:
  std::map<std::string, std::string> contents_;
  std::unique_ptr<MemoryFiles> files_;
};

/// Object number `nth` of a class in a pickle, in the order of a walk that enters each node once.
inline Value& object_of(Value& root, std::string_view class_name, int nth = 0) {
  std::set<const Value*> seen;
  std::vector<Value*> todo{&root};
  while (!todo.empty()) {
    Value* value = todo.back();
    todo.pop_back();
    if (value == nullptr || !seen.insert(value).second) continue;
    const bool is_subclass = torch_ranks::subclass_name(*value) == class_name;
    if ((is_subclass || torch_ranks::class_name(*value) == class_name) && nth-- == 0) return *value;
    std::vector<Value*> children(value->items().begin(), value->items().end());
    if (value->extra() != nullptr) {
      children.insert(children.end(), value->extra()->dict_items.begin(), value->extra()->dict_items.end());
    }
    children.push_back(value->state());
    todo.insert(todo.end(), children.rbegin(), children.rend());
  }
  throw std::logic_error("no such object in the pickle: " + std::string(class_name));
}

/// The node of an attribute's value: in BUILD's dict, in its slots, or in the state of a tensor subclass.
inline Value*& attribute_of(Value& object, std::string_view name) {
  Value* state = torch_ranks::subclass_name(object).empty() ? object.state() : object.items()[3];
  std::vector<Value*> dicts{state};
  if (state->kind == ValueKind::kTuple) dicts.assign(state->items().begin(), state->items().end());
  for (Value* dict : dicts) {
    const std::span<Value*> items = mapping_items(*dict);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->is_string() && items[i]->text() == name) return items[i + 1];
    }
  }
  throw std::logic_error("no such attribute: " + std::string(name));
}

/// All elements, row-major.
template <class Number>
std::vector<Number> whole(Reader& reader, const std::string& name) {
  const Catalog& catalog = located(reader);
  const Tensor* tensor = catalog.find(name);
  if (tensor == nullptr) throw std::logic_error("no tensor " + name);
  std::int64_t count = 1;
  for (const std::int64_t n : tensor->shape) count *= n;
  std::vector<Number> numbers(static_cast<std::size_t>(count));
  Progress progress;
  TensorReader(catalog, reader, static_cast<std::uint32_t>(tensor - catalog.tensors.data()), progress)
      .read(0, count, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

}  // namespace shard::testing
