#include "formats/hdf5/outline.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/entry_paths.h"
#include "formats/hdf5/root_notes.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"

namespace shard::hdf5 {

namespace {

constexpr std::size_t kMaxAttributeName = 65534;  // The length, including a NUL, is stored in 16 bits.

std::string last_key(const Outline::Keys& keys) {
  return keys.path.empty() ? std::string(keys.name) : keys.path.back().text();
}

/// True for an attribute of a dataset that has a different meaning from an object.
bool is_reserved(std::string_view attribute) {
  return attribute.empty() || attribute == kDtypeAttribute || attribute.starts_with(kReserved);
}

void check_attribute_name(std::string_view attribute, std::string_view of) {
  if (attribute.size() <= kMaxAttributeName) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot write '{}' as an attribute", clipped(of)))
      .because(
          fmt::format("its key has {} bytes, but an attribute's name at most {}", attribute.size(), kMaxAttributeName))
      .suggest(Remedy::kDropObjects);
}

}  // namespace

std::uint32_t Outline::add_dataset(DType dtype, Dims shape, std::int64_t offset, std::int64_t bytes) {
  OutgoingDataset dataset{.dtype = dtype, .shape = {}, .offset = offset, .bytes = bytes};
  if (dtype_block(dtype).elements > 1) {
    dataset.shape = {bytes};
    dataset.attributes.emplace_back(kShapeAttribute, integers_content(shape));
  } else {
    dataset.shape.assign(shape.begin(), shape.end());
  }
  if (is_opaque(dtype)) dataset.attributes.emplace_back(kDtypeAttribute, text_content(dtype_name(dtype)));
  datasets_.push_back(std::move(dataset));
  return static_cast<std::uint32_t>(datasets_.size() - 1);
}

std::uint32_t Outline::add_virtual(DType dtype, Dims shape, std::int64_t bytes, std::vector<OutgoingBox> boxes) {
  const std::uint32_t number = add_dataset(dtype, shape, -1, bytes);
  datasets_[number].boxes = std::move(boxes);
  return number;
}

std::string Outline::encoded(std::string name, std::string_view key) {
  has_encoded_names_ = has_encoded_names_ || name != key;
  return name;
}

OutgoingNode& Outline::group_of(const Keys& keys) {
  OutgoingNode* group = &root_;
  for (std::size_t i = 0; i + 1 < keys.path.size(); ++i) {
    const std::string key = keys.path[i].text();
    group = &group->members[encoded(link_name(key), key)];
  }
  return *group;
}

std::string Outline::link(const Keys& keys, std::uint32_t dataset, std::string_view suffix) {
  const std::string key = last_key(keys), name = encoded(link_name(key), key) + std::string(suffix);
  group_of(keys).members[name].dataset = dataset;
  ++datasets_[dataset].names;
  key_sizes_.insert(key.size());
  std::string path;
  for (std::size_t i = 0; i + 1 < keys.path.size(); ++i) path += '/' + link_name(keys.path[i].text());
  return path + '/' + name;
}

OutgoingDataset* Outline::dataset_named(OutgoingNode& group, std::string_view key) {
  const auto member = group.members.find(link_name(key));
  const bool is_dataset = member != group.members.end() && member->second.dataset != kNoIndex;
  return is_dataset ? &datasets_[member->second.dataset] : nullptr;
}

/// Adds a kept attribute to its dataset. The key is that of the dataset, a dot, and the attribute's name, unless it was
/// renamed. A dataset with several names shows an attribute under each of them, so it is added once.
bool Outline::add_kept_to_dataset(OutgoingNode& group, std::string_view key, const KeptContent& kept) {
  const std::string behind = "." + kept.attribute;
  if (!key.ends_with(behind)) return false;
  OutgoingDataset* const dataset = dataset_named(group, key.substr(0, key.size() - behind.size()));
  if (dataset == nullptr || kept.attribute.starts_with(kReserved)) return false;
  if (kept.attribute == kDtypeAttribute && !dataset->content && is_opaque(dataset->dtype)) return false;
  const std::string name = encoded(attribute_name(kept.attribute), kept.attribute);
  const auto known = std::ranges::find(dataset->attributes, name, &std::pair<std::string, OutgoingContent>::first);
  if (known == dataset->attributes.end()) dataset->attributes.emplace_back(name, kept.content);
  return true;
}

void Outline::add_kept(const KeptContent& kept) {
  const Path path = kept.path();
  const Keys keys{kept.name, path};
  if (kept.as == KeptAs::kDataset) {
    datasets_.emplace_back().content = kept.content;
    link(keys, static_cast<std::uint32_t>(datasets_.size() - 1));
    return;
  }
  const std::string key = last_key(keys);
  OutgoingNode& group = group_of(keys);
  std::string name = encoded(attribute_name(key), key);
  check_attribute_name(name, keys.name);
  if (kept.as == KeptAs::kDatasetAttribute && add_kept_to_dataset(group, key, kept)) return;
  if (kept.as == KeptAs::kList && add_to_dataset(group, key, kept.content)) return;
  group.attributes.emplace_back(std::move(name), kept.content);
}

/// Adds an object "w.units" beside a dataset "w" as the attribute "units" of that dataset, as other programs expect it.
/// Datasets with two names are skipped, because they would show it under both.
bool Outline::add_to_dataset(OutgoingNode& group, std::string_view key, const OutgoingContent& content) {
  for (const std::size_t dot : key_sizes_) {
    if (dot >= key.size()) break;
    if (key[dot] != '.') continue;
    OutgoingDataset* const dataset = dataset_named(group, key.substr(0, dot));
    const std::string_view attribute = key.substr(dot + 1);
    if (dataset == nullptr || is_reserved(attribute) || dataset->names > 1) continue;
    dataset->attributes.emplace_back(encoded(attribute_name(attribute), attribute), content);
    return true;
  }
  return false;
}

void Outline::add_object(const Keys& keys, const Value& value) {
  const std::string key = last_key(keys);
  const bool is_root = keys.path.empty() && keys.name.empty();
  OutgoingNode& group = group_of(keys);
  if (value.kind == ValueKind::kDict && value.items().empty() && !is_root)
    return void(group.members[encoded(link_name(key), key)]);
  std::string name = encoded(attribute_name(key), key);
  check_attribute_name(name, keys.name);
  try {
    OutgoingContent content = content_of(value);
    if (!add_to_dataset(group, key, content)) group.attributes.emplace_back(std::move(name), std::move(content));
  } catch (Error& error) {
    throw error.of_tensor(keys.name);
  }
}

void Outline::add_root_attribute(std::string_view name, OutgoingContent content) {
  root_.attributes.emplace_back(name, std::move(content));
}

void Outline::add_text(std::string_view key, std::string_view text) {
  std::string name = std::string(kMetadataPrefix) + encoded(link_name(key), key);
  check_attribute_name(name, key);
  add_root_attribute(name, text_content(text));
}

void Outline::finish() {
  if (has_encoded_names_) add_root_attribute(kNamesAttribute, text_content(kPercentEncoded));
}

}  // namespace shard::hdf5
