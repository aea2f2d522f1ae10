#include "formats/hdf5/root_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/hdf5/link_names.h"
#include "formats/hdf5/tree.h"
#include "formats/hdf5/values.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

[[noreturn]] void refuse(std::string_view name) {
  throw Error(ErrorCode::kCorruption, fmt::format("the root's attribute {} does not hold what it should", name))
      .of_kind(FindingKind::kBadHeader);
}

std::string_view text_of(const Attribute& attribute) {
  if (attribute.content.strings.size() != 1) refuse(attribute.name);
  return attribute.content.strings.front();
}

/// The text of an attribute as text_content() writes it.
std::string_view any_text_of(Arena& arena, const Attribute& attribute) {
  if (attribute.content.strings.size() == 1) return attribute.content.strings.front();
  const Value* const value = value_of(arena, attribute.content, false);
  if (!value->is_string()) refuse(attribute.name);
  return value->text();
}

std::int64_t number_of(const Attribute& attribute) {
  const std::optional<std::vector<std::int64_t>> numbers = integers_of(attribute.content);
  if (!numbers || numbers->size() != 1 || numbers->front() < 0 || numbers->front() > kMaxRanks) refuse(attribute.name);
  return numbers->front();
}

std::span<const std::byte> bytes_of(Arena& arena, const Attribute& attribute) {
  if (attribute.content.type.kind != TypeClass::kOpaque) refuse(attribute.name);
  const std::span<std::byte> copy = arena.array<std::byte>(attribute.content.data.size());
  std::ranges::copy(attribute.content.data, copy.begin());
  return copy;
}

}  // namespace

std::string rank_file_name(std::int64_t rank, std::int64_t world_size) {
  return fmt::format("rank-{:05}-of-{:05}.h5", rank, world_size);
}

RootNotes root_notes(Arena& arena, const Entry& root) {
  RootNotes notes;
  for (const Attribute& attribute : root.attributes) {
    if (attribute.name == kNamesAttribute) {
      if (text_of(attribute) != kPercentEncoded) refuse(attribute.name);
      notes.are_names_encoded = true;
    } else if (attribute.name == kTreeAttribute) {
      notes.tree = bytes_of(arena, attribute);
    } else if (attribute.name == kWorldSizeAttribute) {
      notes.world_size = number_of(attribute);
    } else if (attribute.name == kRankAttribute) {
      notes.rank = number_of(attribute);
    } else if (attribute.name.starts_with(kMetadataPrefix)) {
      notes.metadata.emplace_back(attribute.name.substr(kMetadataPrefix.size()), any_text_of(arena, attribute));
    }
  }
  for (auto& [key, text] : notes.metadata) {
    if (notes.are_names_encoded) key = key_of_link(key);
  }
  return notes;
}

bool is_root_note(std::string_view name) {
  return name == kNamesAttribute || name == kTreeAttribute || name == kWorldSizeAttribute || name == kRankAttribute ||
         name.starts_with(kMetadataPrefix);
}

}  // namespace shard::hdf5
