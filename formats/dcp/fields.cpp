#include "formats/dcp/fields.h"

#include <fmt/format.h>

#include "libshard/core/box.h"

namespace shard::dcp {
namespace {

struct ClassName {
  Class id;
  std::string_view name;
  std::array<std::string_view, 3> modules;
};

constexpr std::string_view kNew = kMetadataModule, kOld = kOldMetadataModule;
constexpr std::array<ClassName, kClassCount> kClasses{{
    {Class::kMetadata, "Metadata", {kNew, kOld, {}}},
    {Class::kTensor, "TensorStorageMetadata", {kNew, kOld, {}}},
    {Class::kBytes, "BytesStorageMetadata", {kNew, kOld, {}}},
    {Class::kChunk, "ChunkStorageMetadata", {kNew, kOld, {}}},
    {Class::kProperties, "TensorProperties", {kNew, kOld, "torch.distributed._shard.sharded_tensor.metadata"}},
    {Class::kIndex, "MetadataIndex", {kNew, kOld, {}}},
    {Class::kStorageInfo,
     "_StorageInfo",
     {"torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem",
      "torch.distributed.checkpoint._fsspec_filesystem"}},
    {Class::kSize, "Size", {"torch", {}, {}}},
}};

const ClassName& class_name(Class id) { return kClasses[static_cast<std::size_t>(id)]; }

}  // namespace

Error damaged(const std::string& message) { return Error(ErrorCode::kCorruption, message).of_kind(FindingKind::kBadPickle); }

bool Fields::is(const Value& value, Class id) {
  if (value.kind != ValueKind::kCall || value.callee == nullptr) return false;
  const Value*& seen = seen_[static_cast<std::size_t>(id)];
  if (value.callee == seen) return true;
  const ClassName& wanted = class_name(id);
  if (value.callee->kind != ValueKind::kGlobal || value.callee->text != wanted.name) return false;
  for (const std::string_view module : wanted.modules) {
    if (!module.empty() && value.callee->module() == module) {
      seen = value.callee;
      return true;
    }
  }
  return false;
}

const Value& Fields::state_of(const Value& object, Class id, std::string_view what) {
  const Value& state = raw_state_of(object, id, what);
  if (state.kind == ValueKind::kTuple && state.items.size() == 2 && is_mapping(*state.items[1])) {
    return *state.items[1];
  }
  if (!is_mapping(state)) {
    throw damaged(fmt::format("{}: {} has no attributes", what, class_name(id).name)).found(type_name(state));
  }
  return state;
}

const Value& Fields::raw_state_of(const Value& object, Class id, std::string_view what) {
  if (!is(object, id)) {
    throw damaged(fmt::format("{} is no {}", what, class_name(id).name))
        .expected(class_name(id).name)
        .found(type_name(object));
  }
  if (object.extra == nullptr || object.extra->state == nullptr) {
    throw damaged(fmt::format("{}: {} has no attributes", what, class_name(id).name));
  }
  return *object.extra->state;
}

const Value& Fields::need(const Value& attributes, std::string_view name, std::string_view what) {
  const Value* value = find_key(attributes, name);
  if (value == nullptr) throw damaged(fmt::format("{} has no {}", what, name));
  return *value;
}

std::int64_t Fields::need_natural(const Value& attributes, std::string_view name, std::string_view what) {
  const Value& value = need(attributes, name, what);
  if (value.kind == ValueKind::kInt && value.number >= 0) return value.number;
  throw damaged(fmt::format("{}: {} is no number of bytes", what, name))
      .found(value.kind == ValueKind::kInt ? std::to_string(value.number) : std::string(type_name(value)));
}

std::span<Value*> Fields::need_mapping(const Value& value, std::string_view what) {
  if (!is_mapping(value)) throw damaged(fmt::format("{} is no dict", what)).found(type_name(value));
  return mapping_items(value);
}

Dims Fields::dims(const Value& value, std::string_view tensor, std::string_view what) {
  const Value* list = &value;
  if (is(value, Class::kSize) && value.items.size() == 1) list = value.items[0];
  if (is(value, Class::kSize) && value.items.empty()) return {};
  if (list->kind != ValueKind::kTuple && list->kind != ValueKind::kList) {
    throw damaged(fmt::format("tensor '{}': {} is no torch.Size", tensor, what))
        .of_tensor(tensor)
        .found(type_name(value));
  }
  if (list->items.size() > kMaxDims) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor '{}' has {} dimensions, at most {} are read", tensor, list->items.size(), kMaxDims))
        .of_tensor(tensor);
  }
  std::array<std::int64_t, kMaxDims> numbers;
  std::size_t count = 0;
  for (const Value* item : list->items) {
    if (item->kind != ValueKind::kInt || item->number < 0) {
      throw damaged(fmt::format("tensor '{}': {} holds what is no size", tensor, what))
          .of_tensor(tensor)
          .found(item->kind == ValueKind::kInt ? std::to_string(item->number) : std::string(type_name(*item)));
    }
    numbers[count++] = item->number;
  }
  return arena_.dims({numbers.data(), count});
}

}  // namespace shard::dcp
