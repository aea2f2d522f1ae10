#include "libshard/catalog/tree.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/tree_walk.h"
#include "libshard/core/clipped.h"
#include "libshard/core/error.h"
#include "libshard/core/python_text.h"
#include "libshard/core/visited.h"

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
    case ValueKind::kFloat: {
      const std::string text = fmt::format("{}", key.real);
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
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
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) descend(key_part(arena_, *items[i]), *items[i + 1]);
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

}  // namespace shard
