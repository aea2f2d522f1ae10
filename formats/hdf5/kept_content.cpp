#include "formats/hdf5/kept_content.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/reply.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/bytes.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_equality.h"

namespace shard::hdf5 {

namespace {

/// An attribute in the parser's encoding. Its name starts with the digit of `as`.
std::string encoded(KeptAs as, std::string_view name, const Content& content) {
  const std::string marked = fmt::format("{}{}", static_cast<int>(as), name);
  Entry entry;
  entry.attributes.push_back({marked, content});
  return encode(entry);
}

std::string shown_type(const Type& type) {
  if (type.kind != TypeClass::kString) return to_string(type);
  return fmt::format("{} string of {}", type.is_utf8 ? "UTF-8" : "ASCII",
                     type.is_variable ? "variable length" : fmt::format("{} bytes", type.bytes));
}

std::string shown_form(const Content& content) {
  switch (content.space.kind) {
    case SpaceKind::kNull:
      return fmt::format("{}, without elements", shown_type(content.type));
    case SpaceKind::kScalar:
      return fmt::format("{}, scalar", shown_type(content.type));
    case SpaceKind::kSimple:
      break;
  }
  return fmt::format("{} {}", shown_type(content.type), content.space.shape);
}

/// Parts [begin, end) of a path.
std::vector<std::string> texts_of(const Path& path, std::size_t begin, std::size_t end) {
  std::vector<std::string> texts;
  for (std::size_t i = begin; i < end; ++i) texts.push_back(path[i].text());
  return texts;
}

/// An object's name without the indexes of an array's element, and the indexes.
struct SplitName {
  std::string name;
  std::vector<PathPart> parts;  ///< The parts of the path; empty if it is the name.
  std::string indexes;          ///< Joined as visit_leaves() joins the name of a leaf.
};

/// Nothing if the object's path is too short. A renamed object may have only a name.
std::optional<SplitName> split(const Object& object, std::size_t depth) {
  SplitName split{std::string(object.name), {}, {}};
  if (depth == 0 || object.path.size() > depth) {
    const std::size_t parts = object.path.size() - depth;
    for (std::size_t i = 0; i < parts; ++i) split.parts.push_back(object.path[i]);
    if (depth > 0) split.name = fmt::format("{}", fmt::join(texts_of(object.path, 0, parts), "."));
    split.indexes = fmt::format("{}", fmt::join(texts_of(object.path, parts, object.path.size()), "."));
    return split;
  }
  if (object.path.size() > 1) return std::nullopt;
  std::size_t end = split.name.size();
  for (std::size_t i = 0; i < depth; ++i) {
    end = end == 0 ? std::string::npos : split.name.rfind('.', end - 1);
    if (end == std::string::npos) return std::nullopt;
  }
  split.indexes = split.name.substr(end + 1);
  split.name.resize(end);
  return split;
}

/// Objects of a target that share a StoredObject.
class Sharers {
 public:
  Sharers(const Catalog& target, const StoredObject& stored) : target_(target), stored_(stored) {}
  void add(std::uint32_t object) { objects_.push_back(object); }
  std::span<const std::uint32_t> objects() const { return objects_; }

  std::optional<KeptContent> kept() const {
    if (objects_.size() != stored_.objects) return std::nullopt;
    std::optional<SplitName> first = split(target_.objects[objects_.front()], stored_.depth);
    if (!first) return std::nullopt;
    Arena arena;  // The source's budget was already charged for the same values.
    const Entry entry = decode_entry(stored_.bytes, 0, arena);
    const Attribute& attribute = entry.attributes.at(0);
    if (!are_all_of(first->name, arena, attribute.content)) return std::nullopt;
    return KeptContent{.as = static_cast<KeptAs>(attribute.name.at(0) - '0'),
                       .attribute = std::string(attribute.name.substr(1)),
                       .name = std::move(first->name),
                       .parts = std::move(first->parts),
                       .content = outgoing(attribute.content)};
  }

 private:
  /// Names may have been swapped, so each object must be under `name` and have the value at its indexes.
  bool are_all_of(const std::string& name, Arena& arena, const Content& content) const {
    HashMap<std::string, const Value*> values;
    for (const std::uint32_t number : objects_) {
      const Object& object = target_.objects[number];
      const std::optional<SplitName> found = split(object, stored_.depth);
      if (!found || found->name != name || !values.try_emplace(found->indexes, object.value).is_new) return false;
    }
    ValueEquality equality;
    bool is_equal = true;
    Value* const value = value_of(arena, content, true);
    const auto none = [](const Value&) { return false; };
    visit_leaves(arena, *value, none, [&](const TreeLeaf& leaf) {
      const Value* const* const found = values.find(std::string(leaf.name));
      is_equal = is_equal && found != nullptr && *found != nullptr && equality.is_equal(**found, *leaf.value);
    });
    return is_equal;
  }

  static OutgoingContent outgoing(const Content& content) {
    return {content.type,
            content.space,
            std::string(as_text(content.data)),
            {content.strings.begin(), content.strings.end()}};
  }

  const Catalog& target_;
  const StoredObject& stored_;
  std::vector<std::uint32_t> objects_;
};

}  // namespace

const StoredObject* keep_content(Arena& arena, KeptAs as, std::string_view name, const Content& content,
                                 std::uint32_t objects, std::uint32_t depth) {
  if (!is_writable(content.type) || !is_read(content)) return nullptr;
  const std::string whole = encoded(as, name, content);
  StoredObject& stored = arena.array<StoredObject>(1).front();
  stored.form = arena.copy(encoded(as, {}, {content.type, content.space, {}, {}}));
  stored.shown = arena.copy(shown_form(content));
  stored.bytes = std::as_bytes(std::span(arena.copy(whole)));
  stored.objects = objects;
  stored.depth = depth;
  return &stored;
}

KeptContents kept_contents(const Catalog& target) {
  KeptContents kept;
  kept.is_kept.resize(target.objects.size());
  if (target.originals == nullptr || target.originals->format != kOriginalsFormat) return kept;
  HashMap<const StoredObject*, std::uint32_t> numbers;
  std::vector<Sharers> all;
  for (std::uint32_t i = 0; i < target.objects.size(); ++i) {
    const StoredObject* const stored = target.originals->stored_as(target.objects[i].value);
    if (stored == nullptr) continue;
    const auto [number, is_new] = numbers.try_emplace(stored, static_cast<std::uint32_t>(all.size()));
    if (is_new) all.emplace_back(target, *stored);
    all[number].add(i);
  }
  for (const Sharers& sharers : all) {
    std::optional<KeptContent> content = sharers.kept();
    if (!content) continue;
    kept.contents.push_back(*std::move(content));
    for (const std::uint32_t object : sharers.objects()) kept.is_kept[object] = true;
  }
  return kept;
}

}  // namespace shard::hdf5
