#include "libshard/catalog/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/numpy_values.h"
#include "libshard/core/python_text.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value_walk.h"

namespace shard {

namespace {

constexpr std::size_t kMaxKeyText = 256;
constexpr std::size_t kMaxNameBytes = 16 << 20;

/// The beginning of `text`, split between characters.
std::string_view front_of(std::string_view text) { return text.substr(0, front_of_characters(text, kMaxKeyText)); }

std::string quoted_key(std::string_view text, bool bytes) {
  return python_repr(bytes ? text.substr(0, kMaxKeyText) : front_of(text), bytes) +
         (text.size() > kMaxKeyText ? "..." : "");
}

/// Python's repr() of a key that is not a string (torch flattens names by str(), which is equal for those). It is
/// clipped, because a tuple may contain itself many times.
std::string key_text(const Value& key, int depth = 0) {
  switch (key.kind) {
    case ValueKind::kNone:
      return "None";
    case ValueKind::kBool:
      return key.boolean() ? "True" : "False";
    case ValueKind::kInt:
      return std::to_string(key.number);
    case ValueKind::kFloat:
      return real_text(key.real);
    case ValueKind::kLong:
      return integer_text(key.text());
    case ValueKind::kString:
    case ValueKind::kBytes:
      return quoted_key(key.text(), key.kind == ValueKind::kBytes);
    case ValueKind::kTuple: {
      if (depth >= 8) return "(...)";
      std::string text = "(";
      for (std::size_t i = 0; i < key.items().size() && text.size() <= kMaxKeyText; ++i) {
        text += (i > 0 ? ", " : "") + key_text(*key.items()[i], depth + 1);
      }
      if (text.size() > kMaxKeyText) return std::string(front_of(text)) + "...)";
      return text + (key.items().size() == 1 ? ",)" : ")");
    }
    case ValueKind::kGlobal:  // For a dtype, for example "torch.float32".
      return fmt::format("{}.{}", key.module(), key.text());
    case ValueKind::kCall:
      if (const auto numpy = as_numpy(key)) return numpy_text(*numpy).value_or(std::string(type_name(key)));
      [[fallthrough]];
    default:
      return std::string(type_name(key));
  }
}

/// For example "cpu" and "cuda:1": str() of a device, which differs from its repr().
std::string device_text(const Value& device) {
  std::string text;
  for (const Value* part : device.items()) {
    if (!text.empty()) text += ':';
    text += part->is_string() ? std::string(front_of(part->text())) : key_text(*part);
  }
  return text;
}

}  // namespace

std::string text_of_key(const Value& key) {
  if (key.is_string()) return std::string(key.text());
  return key.is_call_of("torch", "device") ? device_text(key) : key_text(key);
}

std::string_view copy_name(Arena& arena, std::string_view name) {
  if (std::ssize(name) > kShortName) arena.charge(Charge::kLongNames, std::ssize(name) - kShortName);
  return arena.copy(name);
}

bool is_container(const Value& value) {
  return is_mapping(value) || value.kind == ValueKind::kList || value.kind == ValueKind::kTuple;
}

std::span<Value*> container_items(const Value& value) {
  return is_mapping(value) ? mapping_items(value) : value.items();
}

PathPart key_part(Arena& arena, const Value& key) {
  if (key.kind == ValueKind::kInt) return PathPart::of_int_key(key.number);
  return PathPart::of_key(key.is_string() ? key.text() : arena.copy(text_of_key(key)));
}

void TreePosition::push(const PathPart& part) {
  lengths_.push_back(name_.size());
  if (!parts_.empty()) name_ += '.';
  if (part.is_index) {
    fmt::format_to(std::back_inserter(name_), "{}", part.index);
  } else {
    name_ += part.key();
  }
  parts_.push_back(part);
  check_depth(static_cast<int>(parts_.size()));
  if (name_.size() > kMaxNameBytes) {
    throw Error(ErrorCode::kCorruption, fmt::format("a name is longer than {} bytes", kMaxNameBytes))
        .of_kind(FindingKind::kBadPickle);
  }
}

void TreePosition::pop() {
  parts_.pop_back();
  name_.resize(lengths_.back());
  lengths_.pop_back();
}

namespace {

class LeafWalk {
 public:
  LeafWalk(Arena& arena, const std::function<bool(const Value&)>& is_leaf,
           const std::function<void(const TreeLeaf&)>& visit)
      : arena_(arena), is_leaf_(is_leaf), visit_(visit) {}

  void walk(Value& value) {
    const std::span<Value*> items = is_container(value) ? container_items(value) : std::span<Value*>();
    if (items.empty() || is_leaf_(value)) return emit(value);
    const std::optional<std::span<const PathPart>> outer = std::exchange(container_, std::nullopt);
    if (is_mapping(value)) {
      for (const auto [key, item] : ItemPairs(items)) descend(key_part(arena_, *key), *item);
    } else {
      for (std::size_t i = 0; i < items.size(); ++i) descend(index_part(i), *items[i]);
    }
    container_ = outer;
  }

 private:
  void descend(const PathPart& part, Value& child) {
    arena_.charge(Charge::kVisits);
    position_.push(part);
    walk(child);
    position_.pop();
  }
  void emit(Value& value) {
    const std::span<const PathPart> parts = position_.parts();
    // A single key needs no copy of its text, which is already in an arena.
    const bool one_key = parts.size() == 1 && !parts[0].is_index;
    charge(value);
    visit_({&value, path(), one_key ? parts[0].key() : copy_name(arena_, position_.name())});
  }

  Path path() {
    const std::span<const PathPart> parts = position_.parts();
    if (parts.empty()) return {};
    if (!container_) {
      const std::span<PathPart> copied = arena_.array<PathPart>(parts.size() - 1);
      std::ranges::copy(parts.first(copied.size()), copied.begin());
      container_ = copied;
    }
    return {*container_, parts.back()};
  }

  /// Charges a node under each of its names: an entry, and its text if that is long.
  void charge(const Value& value) {
    constexpr std::size_t kShortText = 64;
    arena_.charge(Charge::kEntries);
    if (value.text().size() <= kShortText || visited_.insert(&value)) return;
    // Converting an integer to decimal digits costs more than its bytes.
    arena_.charge(Charge::kBytes, std::ssize(value.text()) * (value.kind == ValueKind::kLong ? 8 : 1));
  }

  Arena& arena_;
  const std::function<bool(const Value&)>& is_leaf_;
  const std::function<void(const TreeLeaf&)>& visit_;
  TreePosition position_;
  std::optional<std::span<const PathPart>> container_;  ///< The parts of its path, once one of its leaves needed them.
  VisitedSet visited_;                                  ///< Nodes with long texts.
};

}  // namespace

void visit_leaves(Arena& arena, Value& root, const std::function<bool(const Value&)>& is_leaf,
                  const std::function<void(const TreeLeaf&)>& visit) {
  LeafWalk(arena, is_leaf, visit).walk(root);
}

Path compact_path(Path full, std::string_view name) {
  const bool says_no_more = full.size() == 1 && !full[0].is_index && full[0].key() == name && !name.empty();
  return says_no_more ? Path() : full;
}

namespace {

Value* make_leaf(Arena& arena, const TreeEntry& entry) {
  assert(entry.tensor != kNoIndex || entry.object != nullptr);
  return entry.tensor != kNoIndex ? make_tensor(arena, entry.tensor) : entry.object;
}

// --- Pruning ---

class Pruner {
 public:
  Pruner(Arena& arena, std::span<const TreeEntry> entries)
      : arena_(arena), next_(entries.size(), kNoIndex), entries_(entries) {
    last_of_name_.reserve(entries.size());
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      const auto [last, is_new] = last_of_name_.try_emplace(entries[i].name, i);
      if (!is_new) next_[i] = std::exchange(last, i);
    }
  }

  /// The pruned `value` at the walk's position: the value itself, a copy, or null.
  Value* prune(Value& value) {
    const std::span<Value*> items = is_container(value) ? container_items(value) : std::span<Value*>();
    const TreeEntry* entry = find();
    if (items.empty() || (entry != nullptr && entry->object == &value))
      return entry != nullptr ? leaf(value, *entry) : nullptr;
    return is_mapping(value) ? prune_mapping(value, items) : prune_list(value, items);
  }

 private:
  Value* leaf(Value& value, const TreeEntry& entry) {
    const bool is_call = value.kind == ValueKind::kCall && !value.items().empty();
    const Value& inner = is_call ? *value.items()[0] : value;
    const bool keeps_call = is_call && inner.kind == ValueKind::kTensor && entry.tensor != kNoIndex && entry.keeps_call;
    const bool same_number = inner.kind == ValueKind::kTensor && inner.number == std::int64_t{entry.tensor};
    if (same_number && is_call == keeps_call) return &value;
    Value* const made = make_leaf(arena_, entry);
    if (!keeps_call) return made;
    Value* const call = copy_of_call(arena_, value);
    call->items()[0] = made;
    return call;
  }

  Value* prune_at(const PathPart& part, Value& value) {
    position_.push(part);
    Value* kept = prune(value);
    position_.pop();
    return kept;
  }

  Value* prune_mapping(Value& mapping, std::span<Value*> items) {
    std::vector<Value*> kept;
    bool changed = false;
    for (const auto [key, item] : ItemPairs(items)) {
      Value* child = prune_at(key_part(arena_, *key), *item);
      changed = changed || child != item;
      if (child != nullptr) kept.insert(kept.end(), {key, child});
    }
    if (!changed) return &mapping;
    return kept.empty() ? nullptr : with_items(arena_, mapping, kept);
  }

  Value* prune_list(Value& list, std::span<Value*> items) {
    std::vector<Value*> kept, keyed;
    bool changed = false, has_hole = false;
    for (std::size_t i = 0; i < items.size(); ++i) {
      Value* child = prune_at(index_part(i), *items[i]);
      changed = changed || child != items[i];
      if (child == nullptr) continue;
      has_hole = has_hole || kept.size() != i;
      kept.push_back(child);
      keyed.insert(keyed.end(), {make_int(arena_, static_cast<std::int64_t>(i)), child});
    }
    if (!changed) return &list;
    if (kept.empty()) return nullptr;
    return has_hole ? make_list(arena_, ValueKind::kDict, keyed) : make_list(arena_, list.kind, kept);
  }

  const TreeEntry* find() const {
    const std::uint32_t* last = last_of_name_.find(position_.name());
    std::uint32_t i = last == nullptr ? kNoIndex : *last;
    while (i != kNoIndex && !leads_here(entries_[i])) i = next_[i];
    return i == kNoIndex ? nullptr : &entries_[i];
  }

  bool leads_here(const TreeEntry& entry) const {
    const std::vector<PathPart>& here = position_.parts();
    if (entry.path.empty()) return compact_path(Path(here), position_.name()).empty();
    return entry.path == Path(here);
  }

  Arena& arena_;
  HashMap<std::string_view, std::uint32_t> last_of_name_;
  std::vector<std::uint32_t> next_;  ///< By entry: the next entry with the same name.
  std::span<const TreeEntry> entries_;
  TreePosition position_;
};

// --- Building ---

class TreeBuilder {
 public:
  TreeBuilder(Arena& arena, std::span<const TreeEntry> entries) : arena_(arena) {
    entries_.reserve(entries.size());
    for (const TreeEntry& entry : entries) entries_.push_back(&entry);
    const auto less = [](const TreeEntry* a, const TreeEntry* b) { return compare(*a, *b) < 0; };
    if (!std::ranges::is_sorted(entries_, less)) std::ranges::stable_sort(entries_, less);
  }

  Value* run() {
    const bool is_root = entries_.size() == 1 && entries_[0]->path.empty() && entries_[0]->name.empty();
    return is_root ? make_leaf(arena_, *entries_[0]) : build(entries_, 0);
  }

 private:
  using Range = std::span<const TreeEntry* const>;

  static std::size_t size(const TreeEntry& entry) { return entry.path.empty() ? 1 : entry.path.size(); }
  static PathPart part(const TreeEntry& entry, std::size_t i) {
    return entry.path.empty() ? PathPart::of_key(entry.name) : entry.path[i];
  }
  static int compare(const PathPart& a, const PathPart& b) {
    if (a.is_index != b.is_index) return a.is_index ? 1 : -1;
    if (!a.is_index) return a.key().compare(b.key());
    return a.index == b.index ? 0 : a.index < b.index ? -1 : 1;
  }
  static int compare(const TreeEntry& a, const TreeEntry& b) {
    const std::size_t common = std::min(size(a), size(b));
    for (std::size_t i = 0; i < common; ++i) {
      if (const int order = compare(part(a, i), part(b, i)); order != 0) return order;
    }
    return size(a) == size(b) ? 0 : size(a) < size(b) ? -1 : 1;
  }

  /// Builds the container of entries that share their first `depth` parts.
  Value* build(Range range, std::size_t depth) {
    check_depth(static_cast<int>(depth));
    std::vector<Value*> keyed;
    std::int64_t list_size = 0;
    bool is_list = !range.empty();
    for (std::size_t begin = 0, end = 0; begin < range.size(); begin = end) {
      const PathPart key = part(*range[begin], depth);
      while (end < range.size() && compare(part(*range[end], depth), key) == 0) ++end;
      is_list = is_list && key.is_index && !key.is_int_key && key.index == list_size++;
      keyed.push_back(key.is_index ? make_int(arena_, key.index) : make_key(key.key()));
      keyed.push_back(build_child(range.subspan(begin, end - begin), depth + 1));
    }
    if (!is_list) return make_list(arena_, ValueKind::kDict, keyed);
    std::vector<Value*> items;
    for (std::size_t i = 1; i < keyed.size(); i += 2) items.push_back(keyed[i]);
    return make_list(arena_, ValueKind::kList, items);
  }

  /// Builds the value of entries that share `depth` parts. The shortest entry comes first. If it ends here, it must be
  /// the only one.
  Value* build_child(Range range, std::size_t depth) {
    if (size(*range[0]) > depth) return build(range, depth);
    if (range.size() == 1) return make_leaf(arena_, *range[0]);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' and '{}' cannot both be in one tree", range[0]->name, range[1]->name))
        .of_tensor(range[1]->name)
        .of_kind(FindingKind::kDuplicateName)
        .because("one path is equal to the other or is a prefix of it");
  }

  /// Key texts are in the catalogs' arenas already.
  Value* make_key(std::string_view text) {
    Value* key = make_value(arena_, ValueKind::kString);
    key->set_text(text);
    return key;
  }

  Arena& arena_;
  std::vector<const TreeEntry*> entries_;
};

}  // namespace

Value* prune_tree(Arena& arena, Value& root, std::span<const TreeEntry> entries) {
  Value* pruned = Pruner(arena, entries).prune(root);
  return pruned != nullptr ? pruned : make_value(arena, ValueKind::kDict);
}

Value* tree_of_paths(Arena& arena, std::span<const TreeEntry> entries) { return TreeBuilder(arena, entries).run(); }

}  // namespace shard
