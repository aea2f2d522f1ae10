#include "formats/dcp/flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"

namespace shard::dcp {
namespace {

// A Parameter is written as the tensor that it wraps, as torch's own DCP does.
const Value& unwrapped(const Value& value) {
  const bool is_parameter = value.is_call_of("torch._utils", "_rebuild_parameter") ||
                            value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  return is_parameter && !value.items().empty() ? *value.items()[0] : value;
}

std::string path_text(Path path) {
  std::string text;
  for (const PathPart& part : path) {
    text += text.empty() ? "[" : ", ";
    text += part.is_index ? std::to_string(part.index) : fmt::format("'{}'", part.key());
  }
  return text + "]";
}

/// Losses of one kind: the first location, and the number of further ones.
struct Loss {
  std::string first;
  std::int64_t count = 0;
};

class Flattener {
 public:
  explicit Flattener(const Catalog& catalog) : catalog_(catalog) {}

  Flat run() {
    out_.tensors.reserve(catalog_.tensors.size());
    if (catalog_.root == nullptr) {
      from_lists();
    } else {
      from_root();
    }
    warn();
    return std::move(out_);
  }

 private:
  enum LossKind { kIntegerKeys, kOtherKeys, kEmptyDict, kMappingType, kMetadataState, kTuple, kListTop, kLossKinds };

  void from_lists() {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      listed(catalog_.tensors[i].name, catalog_.tensors[i].path, nullptr, i);
    }
    for (const Object& object : catalog_.objects) listed(object.name, object.path, object.value, kNoIndex);
  }

  void listed(std::string_view name, Path path, const Value* value, std::uint32_t tensor) {
    path_.assign(path.begin(), path.end());
    if (path_.empty()) path_.push_back(PathPart::of_key(name));
    leaf(path.empty() ? Path({}, path_.back()) : path, value, tensor);
  }

  void from_root() {
    const Value& root = unwrapped(*catalog_.root);
    if (is_mapping(root)) return mapping(root, 0);
    if (root.kind != ValueKind::kList && root.kind != ValueKind::kTuple) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the checkpoint is a bare {}, but dcp stores a dict", type_name(root)))
          .suggest(Remedy::kAddPrefix);
    }
    lose(kListTop);
    for (std::size_t i = 0; i < root.items().size(); ++i) {
      enter(catalog_.arena->copy(std::to_string(i)), *root.items()[i], 0);
    }
  }

  void enter(std::string_view key, const Value& value, int depth) { descend(PathPart::of_key(key), value, depth); }

  void descend(const PathPart& part, const Value& value, int depth) {
    path_.push_back(part);
    containers_.emplace_back();
    visit(value, depth + 1);
    path_.pop_back();
    containers_.pop_back();
  }

  void visit(const Value& wrapped, int depth) {
    check_nesting(depth);
    const Value& value = unwrapped(wrapped);
    if (value.kind == ValueKind::kTensor) {
      const Tensor* named = catalog_.find(joined());
      leaf(kept_path(), nullptr,
           static_cast<std::uint32_t>(named != nullptr ? named - catalog_.tensors.data() : value.number));
    } else if (is_mapping(value)) {
      mapping(value, depth);
    } else if (is_descended(value, depth)) {
      if (value.kind == ValueKind::kTuple) lose(kTuple);
      for (std::size_t i = 0; i < value.items().size(); ++i) {
        descend(PathPart::of_index(static_cast<std::int64_t>(i)), *value.items()[i], depth);
      }
    } else {
      check_storable(value, depth);
      leaf(kept_path(), &value, kNoIndex);
    }
  }

  void mapping(const Value& value, int depth) {
    const std::span<Value*> items = mapping_items(value);
    if (value.kind == ValueKind::kCall) {
      lose(value.state() != nullptr ? kMetadataState : kMappingType);
    }
    if (items.empty()) empty_dict();
    for (const auto [key, item] : ItemPairs(items)) enter(key_text(*key), *item, depth);
  }

  void empty_dict() {
    if (std::ranges::none_of(path_, [](const PathPart& part) { return part.is_index; })) return lose(kEmptyDict);
    leaf(kept_path(), make_list(*catalog_.arena, ValueKind::kDict, {}), kNoIndex);
  }

  // str(key), as torch computes it.
  std::string_view key_text(const Value& key) {
    if (key.is_string()) return key.text();
    lose(key.kind == ValueKind::kInt ? kIntegerKeys : kOtherKeys);
    return catalog_.arena->copy(text_of_key(key));
  }

  bool is_descended(const Value& value, int depth) {
    if (value.kind == ValueKind::kTuple) return holds_tensor(value, depth);
    if (value.kind != ValueKind::kList) return false;
    return remembered(descended_, value, depth, [&] {
      return std::ranges::any_of(value.items(), [&](const Value* item) {
        const Value& inner = unwrapped(*item);
        return inner.kind == ValueKind::kTensor || is_mapping(inner) || is_descended(inner, depth + 1);
      });
    });
  }

  bool holds_tensor(const Value& wrapped, int depth) {
    const Value& value = unwrapped(wrapped);
    if (value.kind == ValueKind::kTensor) return true;
    const std::span<Value*> items = is_mapping(value) ? mapping_items(value) : value.items();
    if (items.empty()) return false;
    return remembered(holding_, value, depth, [&] {
      return std::ranges::any_of(items, [&](const Value* item) { return holds_tensor(*item, depth + 1); });
    });
  }

  /// Caches `answer` per container, so that each container is visited once even if it is shared or deeply nested.
  template <class Answer>
  bool remembered(HashMap<const Value*, bool>& known, const Value& value, int depth, const Answer& answer) {
    check_nesting(depth);
    if (const bool* said = known.find(&value)) return *said;
    const bool is_so = answer();
    known.try_emplace(&value, is_so);
    return is_so;
  }

  void check_storable(const Value& value, int depth) {
    check_nesting(depth);
    const bool has_parts = !value.items().empty() || value.kind == ValueKind::kCall;
    if (has_parts && !storable_.insert(&value)) return;
    const bool is_tensor = value.kind == ValueKind::kTensor || value.kind == ValueKind::kPersid;
    if (is_tensor || value.kind == ValueKind::kOpaque) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("cannot write object '{}' to dcp: it contains {}", joined(),
                              is_tensor ? std::string("a tensor") : fmt::format("a {}", type_name(value))))
          .of_tensor(joined())
          .suggest(Remedy::kExclude, joined())
          .suggest(Remedy::kDropObjects);
    }
    for_each_child(value, [&](const Value& child) { check_storable(child, depth + 1); });
  }

  void check_nesting(int depth) {
    if (depth <= kMaxValueDepth) return;
    throw Error(ErrorCode::kCorruption, fmt::format("'{}': containers are nested too deeply", joined()));
  }

  const std::string& joined() {
    joined_.clear();
    for (std::size_t i = 0; i < path_.size(); ++i) {
      if (i > 0) joined_ += '.';
      if (path_[i].is_index) {
        fmt::format_to(std::back_inserter(joined_), "{}", path_[i].index);
      } else {
        joined_ += path_[i].key();
      }
    }
    return joined_;
  }

  /// The list and the index of a leaf.
  struct Place {
    std::uint32_t number : 31;
    bool is_object : 1;
  };

  template <class Use>
  auto with_entry(Place place, const Use& use) const {
    return place.is_object ? use(out_.objects[place.number]) : use(out_.tensors[place.number]);
  }
  std::string_view name_of(Place place) const {
    return with_entry(place, [](const auto& entry) { return entry.name; });
  }

  /// \pre `path_` contains the path's parts.
  void leaf(Path path, const Value* value, std::uint32_t tensor) {
    if (value == nullptr && tensor == kNoIndex) return;
    const PathPart& last = path_.back();
    const bool is_key = path_.size() == 1 && !last.is_index;
    const std::string_view name = is_key ? last.key() : catalog_.arena->copy(joined());
    const std::uint32_t known =
        names_.find_or_add(hash_(name), [&](std::uint32_t entry) { return name_of(places_[entry]) == name; });
    if (known < places_.size()) {
      const Path first = with_entry(places_[known], [](const auto& entry) { return entry.path; });
      throw Error(ErrorCode::kUnsupported, fmt::format("{} and {} would have the same name in dcp: '{}'",
                                                       path_text(first), path_text(path), name))
          .of_tensor(name)
          .suggest(Remedy::kRename)
          .of_kind(FindingKind::kDuplicateName);
    }
    const bool is_object = tensor == kNoIndex;
    const std::size_t number = is_object ? out_.objects.size() : out_.tensors.size();
    places_.push_back({static_cast<std::uint32_t>(number) & 0x7FFFFFFF, is_object});
    if (is_object) {
      out_.objects.push_back({name, path, static_cast<std::uint32_t>(number)});
      out_.values.push_back(value);
    } else {
      out_.tensors.push_back({name, path, tensor});
    }
  }

  /// A lasting copy of `path_`. The parts before the last one are copied only for the first leaf of their container.
  Path kept_path() {
    const std::size_t depth = path_.size() - 1;
    std::span<const PathPart>& container = containers_[depth];
    if (container.size() != depth) {
      const std::span<PathPart> copy = catalog_.arena->array<PathPart>(depth);
      std::copy_n(path_.begin(), depth, copy.begin());
      container = copy;
    }
    return Path(container, path_.back());
  }

  void lose(LossKind kind) {
    Loss& loss = losses_[kind];
    if (loss.count++ == 0) loss.first = path_.empty() ? "the top" : fmt::format("'{}'", joined());
  }

  void warn() {
    constexpr std::array<std::string_view, kLossKinds> kTexts{
        "integer keys become strings in {}",
        "keys of other types become strings in {}",
        "an empty dict is lost: {}",
        "OrderedDict and other mappings become dict: {}",
        "the _metadata of {} is lost, and OrderedDict becomes dict",
        "a tuple that contains tensors becomes a list: {}",
        "the list at {} becomes a dict"};
    for (std::size_t i = 0; i < kTexts.size(); ++i) {
      if (losses_[i].count == 0) continue;
      std::string line = "dcp: " + fmt::format(fmt::runtime(kTexts[i]), losses_[i].first);
      const std::int64_t more = losses_[i].count - 1;
      if (more > 0) line += fmt::format(" (and {} more)", more);
      out_.warnings.push_back(std::move(line));
    }
  }

  const Catalog& catalog_;
  Flat out_;
  std::vector<PathPart> path_;
  std::vector<std::span<const PathPart>> containers_{{}};  ///< The kept first parts of `path_`, by depth.
  std::string joined_;
  std::array<Loss, kLossKinds> losses_;
  HashMap<const Value*, bool> descended_, holding_;
  VisitedSet storable_;
  KeyedHash hash_;
  HashSlots names_;            ///< Slots of places_.
  std::vector<Place> places_;  ///< The places of all leaves.
};

}  // namespace

Flat flatten(const Catalog& catalog) { return Flattener(catalog).run(); }

}  // namespace shard::dcp
