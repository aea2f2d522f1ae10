#include "formats/torch/load_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

constexpr std::size_t kMaxLocations = 4096;  // Devices; a file that names more is not of this world.

// _rebuild_parameter(data, requires_grad, hooks), and the same with a state behind, in which no tensors may hide: they
// would be written without their bytes.
bool is_parameter(const Value& value) {
  const bool has_state = value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  if (!has_state && !value.is_call_of("torch._utils", "_rebuild_parameter")) return false;
  if (value.items.size() < 3 || value.items[1]->kind != ValueKind::kBool) return false;
  return !has_state || std::ranges::all_of(value.items.subspan(3),
                                           [](const Value* state) { return hidden_tensor_kind(*state).empty(); });
}

void become_tensor(Value& node, std::uint32_t index) {
  node = Value();
  node.kind = ValueKind::kTensor;
  node.number = index;
}

}  // namespace

TreeLoader::TreeLoader(Catalog& catalog, std::vector<const zip::Record*>& records, const SavedFile& saved,
                       std::uint32_t file)
    : catalog_(catalog),
      records_(records),
      saved_(saved),
      file_(file),
      plain_(saved.zip->records().size(), kNoIndex),
      other_(saved.zip->records().size(), kNoIndex) {}

void TreeLoader::load() {
  for (std::size_t i = 0; i < catalog_.locations.size(); ++i) {
    locations_.emplace(catalog_.arena->copy(catalog_.locations[i]), static_cast<std::uint16_t>(i));
  }
  try {
    visit_leaves(
        *catalog_.arena, *saved_.root, [](const Value&) { return false; },
        [this](const TreeLeaf& leaf) {
          try {
            visit(leaf);
          } catch (Error& error) {
            throw error.of_tensor(leaf.name);
          }
        });
  } catch (Error& error) {
    throw error.in_file(catalog_.files[file_].path);
  }
}

void TreeLoader::visit(const TreeLeaf& leaf) {
  const bool wrapped = is_parameter(*leaf.value);
  Value& node = wrapped ? *leaf.value->items[0] : *leaf.value;
  if (node.kind == ValueKind::kTensor) return add_again(leaf, node);
  const std::optional<TensorView> view = as_tensor(*catalog_.arena, node);
  if (!view) return add_object(leaf);
  add_tensor(leaf, node, *view, wrapped ? leaf.value->items[1]->boolean : view->requires_grad);
}

void TreeLoader::add_tensor(const TreeLeaf& leaf, Value& node, const TensorView& view, bool requires_grad) {
  StoredTensor stored;
  stored.shape = view.shape;
  stored.strides = view.strides;
  stored.first = view.first;
  stored.storage = storage_of(view);
  stored.dtype = view.dtype;
  stored.requires_grad = requires_grad;
  become_tensor(node, add_whole_tensor(catalog_, leaf.name, compact_path(leaf.path, leaf.name), stored));
}

// One tensor object under several names: one entry each; the node keeps the first one's number.
void TreeLoader::add_again(const TreeLeaf& leaf, const Value& node) {
  const Tensor& first = catalog_.tensors[static_cast<std::size_t>(node.number)];
  const StoredTensor stored = catalog_.stored[catalog_.chunks[first.first_chunk].stored];
  add_whole_tensor(catalog_, leaf.name, compact_path(leaf.path, leaf.name), stored);
}

void TreeLoader::add_object(const TreeLeaf& leaf) {
  catalog_.objects.push_back({leaf.name, compact_path(leaf.path, leaf.name), leaf.value, -1});
  if (const std::string_view kind = hidden_tensor_kind(*leaf.value); kind == "attribute") {
    catalog_.warnings.push_back(
        fmt::format("tensors inside the object '{}' ({}) are not listed: they are attributes of it", leaf.name,
                    type_name(*leaf.value)));
  }
}

std::uint32_t TreeLoader::storage_of(const TensorView& view) {
  const zip::Record* record = saved_.zip->find(fmt::format("data/{}", view.key));
  if (record == nullptr) {
    throw Error(ErrorCode::kCorruption, fmt::format("the storage's record data/{} is missing", view.key))
        .of_kind("missing_file");
  }
  if (record->bytes != view.storage_bytes) {
    throw Error(ErrorCode::kCorruption, fmt::format("the storage's record data/{} has {} bytes, the pickle says {}",
                                                    view.key, record->bytes, view.storage_bytes))
        .of_kind("shape_mismatch")
        .expected(view.storage_bytes)
        .found(record->bytes);
  }
  const bool swapped = saved_.big_endian && dtype_bits(view.dtype) > 8;
  const bool plain = record->method == 0 && !swapped && !view.conj && !view.neg;
  const std::size_t index = static_cast<std::size_t>(record - saved_.zip->records().data());
  std::uint32_t& storage = (plain ? plain_ : other_)[index];
  if (storage == kNoIndex) {
    storage = static_cast<std::uint32_t>(catalog_.storages.size());
    catalog_.storages.push_back(
        {.bytes = record->bytes, .file = file_, .location = location_of(view.location), .plain = plain});
    records_.push_back(record);
  }
  return storage;
}

std::uint16_t TreeLoader::location_of(std::string_view location) {
  if (const auto known = locations_.find(location); known != locations_.end()) return known->second;
  if (catalog_.locations.size() >= kMaxLocations) {
    throw Error(ErrorCode::kUnsupported, fmt::format("the tensors lie on more than {} devices", kMaxLocations));
  }
  const std::uint16_t index = static_cast<std::uint16_t>(catalog_.locations.size());
  catalog_.locations.emplace_back(location);
  locations_.emplace(location, index);
  return index;
}

}  // namespace shard::torch_save
