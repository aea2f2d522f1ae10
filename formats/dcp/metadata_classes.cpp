#include "formats/dcp/metadata_classes.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/attributes.h"

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
}};

const ClassName& class_name(Class id) { return kClasses[static_cast<std::size_t>(id)]; }

bool names(const Value& callee, Class id) {
  if (callee.kind != ValueKind::kGlobal) return false;
  const ClassName& wanted = class_name(id);
  if (callee.text() != wanted.name)
    return id == Class::kMetadata && is_megatron_metadata(callee.module(), callee.text());
  const auto is_module = [&](std::string_view module) { return !module.empty() && module == callee.module(); };
  return std::ranges::any_of(wanted.modules, is_module);
}

}  // namespace

bool is_megatron_metadata(std::string_view module, std::string_view name) {
  return name == "MCoreMetadata" && module.starts_with("megatron.");
}

bool MetadataClasses::is(const Value& value, Class id) {
  if (value.kind != ValueKind::kCall || value.callee() == nullptr) return false;
  const Value*& seen = seen_[static_cast<std::size_t>(id)];
  if (value.callee() == seen) return true;
  if (!names(*value.callee(), id)) return false;
  seen = value.callee();
  return true;
}

void MetadataClasses::need(const Value& object, Class id) {
  const ClassName& wanted = class_name(id);
  if (!is(object, id)) {
    throw pickle::malformed(wanted.name, fmt::format("found a value of type {} instead", type_name(object)));
  }
  if (object.extra() == nullptr || object.extra()->state == nullptr) {
    throw pickle::malformed(wanted.name, "it has no attributes");
  }
}

}  // namespace shard::dcp
