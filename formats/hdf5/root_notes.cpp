#include "formats/hdf5/root_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/hdf5/entry_paths.h"
#include "formats/hdf5/values.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"

namespace shard::hdf5 {

namespace {

[[noreturn]] void refuse(std::string_view name) {
  throw Error(ErrorCode::kCorruption, fmt::format("the root's attribute {} has an unexpected content", name))
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

namespace {

/// The placeholder of a tensor or object: an id without content, because its path names it.
Value* make_placeholder(Arena& arena) {
  Value* number = make_int(arena, 0);
  return make_list(arena, ValueKind::kPersid, std::span(&number, 1));
}

std::span<Value* const> members_of(const Value& value) {
  const bool is_sequence = value.kind == ValueKind::kList || value.kind == ValueKind::kTuple;
  return is_sequence ? value.items() : mapping_items(value);
}

/// Whether groups with names in bytewise order express all containers under `value`. The root is a group, not a leaf.
bool is_plain(const Value& value, int depth = 0) {
  check_depth(depth);
  if (members_of(value).empty()) return depth > 0;
  if (value.kind != ValueKind::kDict) return false;
  const Value* previous = nullptr;
  for (const auto [key, member] : ItemPairs(value)) {
    if (!key->is_string() || (previous != nullptr && previous->text() >= key->text())) return false;
    if (!is_plain(*member, depth + 1)) return false;
    previous = key;
  }
  return true;
}

/// Every tensor and object as a placeholder, except the objects that `is_left_out` marks.
std::vector<TreeEntry> placeholders(const Catalog& catalog, Value* placeholder, const std::vector<bool>& is_left_out) {
  std::vector<TreeEntry> entries;
  entries.reserve(catalog.tensors.size() + catalog.objects.size());
  for (const Tensor& tensor : catalog.tensors) entries.push_back({tensor.name, tensor.path, kNoIndex, placeholder});
  for (std::size_t i = 0; i < catalog.objects.size(); ++i) {
    const Object& object = catalog.objects[i];
    if (i < is_left_out.size() && is_left_out[i]) continue;
    entries.push_back({object.name, object.path, kNoIndex, placeholder});
  }
  return entries;
}

/// Whether groups express the whole tree except for the lists of arrays.
bool is_plain_without(Arena& arena, const Catalog& catalog, Value* placeholder, const std::vector<bool>& is_kept) {
  if (std::ranges::find(is_kept, true) == is_kept.end()) return false;
  const Value* const rest = prune_tree(arena, *catalog.root, placeholders(catalog, placeholder, is_kept));
  return members_of(*rest).empty() || is_plain(*rest);
}

/// The leaves of a tree, matched with their tensors and objects.
class TreeMatch {
 public:
  explicit TreeMatch(Catalog& catalog) : catalog_(catalog) {
    for (std::uint32_t i = 0; i < tensors(); ++i) add(catalog.tensors[i].name, i);
    for (std::uint32_t i = 0; i < catalog.objects.size(); ++i) add(catalog.objects[i].name, tensors() + i);
  }

  void match(Value& root) {
    visit_leaves(*catalog_.arena, root, is_placeholder, [this](const TreeLeaf& leaf) {
      const std::uint32_t* entry = is_placeholder(*leaf.value) ? by_name_.find(leaf.name) : nullptr;
      if (entry == nullptr || std::exchange(found_[*entry], leaf).value != nullptr) fits_ = false;
    });
  }

  bool fits() const {
    return fits_ && std::ranges::none_of(found_, [](const TreeLeaf& leaf) { return leaf.value == nullptr; });
  }

  /// Gives every entry its path, and puts tensors and objects into the tree. `root` itself may be one.
  Value* apply(Value& root) {
    std::vector<TreeEntry> entries;
    for (std::uint32_t i = 0; i < found_.size(); ++i) {
      const Path path = compact_path(found_[i].path, found_[i].name);
      if (i < tensors()) {
        catalog_.tensors[i].path = path;
        entries.push_back({found_[i].name, path, i, nullptr});
      } else {
        Object& object = catalog_.objects[i - tensors()];
        object.path = path;
        entries.push_back({found_[i].name, path, kNoIndex, object.value});
      }
    }
    return prune_tree(*catalog_.arena, root, entries);
  }

 private:
  static bool is_placeholder(const Value& value) { return value.kind == ValueKind::kPersid; }
  std::uint32_t tensors() const { return static_cast<std::uint32_t>(catalog_.tensors.size()); }
  void add(std::string_view name, std::uint32_t number) {
    fits_ = by_name_.try_emplace(name, number).is_new && fits_;
    found_.emplace_back();
  }

  Catalog& catalog_;
  HashMap<std::string_view, std::uint32_t> by_name_;  ///< Tensors, then objects.
  std::vector<TreeLeaf> found_;
  bool fits_ = true;
};

}  // namespace

std::string dump_tree(const Catalog& catalog, const std::vector<bool>& is_kept) {
  const bool is_empty = catalog.tensors.empty() && catalog.objects.empty();
  if (catalog.root == nullptr || is_empty || is_plain(*catalog.root)) return {};
  Arena arena;
  Value* const placeholder = make_placeholder(arena);
  if (is_plain_without(arena, catalog, placeholder, is_kept)) return {};
  pickle::Dumper dumper({.protocol = 4, .sink = {}, .tensor = {}});
  dumper.value(*prune_tree(arena, *catalog.root, placeholders(catalog, placeholder, {})));
  return dumper.finish();
}

bool load_tree(Catalog& catalog, std::span<const std::byte> pickle) {
  const pickle::LoadOptions options{.file = catalog.files.empty() ? "" : catalog.files.front().path,
                                    .allow = pickle::is_known_global,
                                    .integer_ids = true};
  std::string_view text = as_text(pickle);
  if (text.starts_with(kPickleMark)) text.remove_prefix(kPickleMark.size());
  Value* const root = pickle::load(*catalog.arena, std::as_bytes(std::span(catalog.arena->copy(text))), options);
  TreeMatch match(catalog);
  match.match(*root);
  if (!match.fits()) return false;
  catalog.root = match.apply(*root);
  return true;
}

}  // namespace shard::hdf5
