#include "formats/dcp/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/objects.h"
#include "formats/megatron_dist/format.h"
#include "formats/megatron_dist/save_folder.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"
#include "libshard/core/split.h"
#include "libshard/core/value_walk.h"

namespace shard::megatron_dist {

namespace {

// The `_extra_state` objects that Megatron-Core's linear layers save.
//
// Each linear layer of Megatron-Core itself (without Transformer Engine) saves one object beside its weight: None. A
// load requires every one of them by default. Megatron-Core 0.16.1 and 0.19.2 write the same names: for layers below
// `decoder.layers` or `mtp.layers` whose name starts with `linear_`, and for `eh_proj` of multi-token prediction.
// Embedding, head, router and norms have none.

/// The largest number of objects that are created. DeepSeek-V3 has 31,000.
inline constexpr std::size_t kMaxExtraStates = 1 << 20;

/// True if a name, without wrappers before it (`module.`, `model.`), belongs to a transformer layer.
bool is_in_layers(std::string_view name) {
  while (take_prefix(name, "module.") || take_prefix(name, "model.")) {
  }
  return name.starts_with("decoder.layers.") || name.starts_with("mtp.layers.");
}

/// The linear layer whose weight the tensor is; empty for any other tensor. If a weight is stored in two halves with
/// separate keys, only the first half counts.
std::string_view linear_module(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !is_in_layers(name)) return {};
  const std::string_view module = name.substr(0, dot), leaf = name.substr(dot + 1);
  if (leaf != "weight" && leaf != "weight_w") return {};
  const std::string_view last = last_part(module);
  return last.starts_with("linear_") || last == "eh_proj" ? module : std::string_view();
}

void append_names(std::string_view module, std::span<const std::int64_t> stacked, std::vector<std::string>& names) {
  const std::vector<std::int64_t> one{1};
  if (stacked.empty()) stacked = one;
  std::vector<std::int64_t> offset(stacked.size());
  do {
    if (names.size() == kMaxExtraStates) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the tensors are weights of more than {} linear layers", kMaxExtraStates))
          .because("Megatron-Core saves an object (_extra_state) for each of them");
    }
    names.push_back(
        fmt::format("{}._extra_state/shard_{}_{}", module, fmt::join(offset, "."), fmt::join(stacked, ".")));
  } while (next_index<std::int64_t>(offset, stacked) >= 0);
}

/// The names of the items that a save of these tensors has: `MODULE._extra_state/shard_OFFSET_SHAPE`, one per matrix of
/// a stacked weight, in the order of tensors and offsets. Tensors without elements have none.
/// \throws Error kUnsupported  more than kMaxExtraStates.
std::vector<std::string> extra_state_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const Tensor& tensor : catalog.tensors) {
    const std::string_view module = linear_module(tensor.name);
    if (module.empty() || tensor.shape.size() < 2 || is_empty(tensor.shape)) continue;
    append_names(module, tensor.shape.span().first(static_cast<std::size_t>(tensor.shape.size()) - 2), names);
  }
  return names;
}

constexpr std::string_view kConfig = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
constexpr std::string_view kConfigWithCommon =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";
constexpr std::string_view kArguments = "args";

bool is_sharded_object(std::string_view name) { return name.find("/shard_") != std::string_view::npos; }

Value* namespace_of(Arena& arena, Value* attributes) {
  Value* const made = make_call(arena, make_global(arena, "argparse", "Namespace"), {});
  made->is_new = true;
  made->call->state = attributes;
  return made;
}

/// Divides a target's content into items and common data.
class Content {
 public:
  Content(Catalog& target, bool common_file) : target_(target), arena_(*target.arena), common_file_(common_file) {}

  dcp::FolderContent run() {
    dcp::FolderContent content{.flat = flatten_others(), .has_paths = false};
    dcp::Flat& flat = content.flat;
    for (dcp::TensorLeaf& leaf : flat.tensors) leaf.path = Path({}, PathPart::of_key(leaf.name));
    Value* const common = common_of(flat);
    flat.objects.clear();
    flat.values.clear();
    add_extra_states();
    for (const auto& [name, value] : items_) {
      if (const Originals::Item* item = item_of(*value)) {
        content.ready[flat.objects.size()].original = *item;
      } else {
        check_written(name, *value);
      }
      add(flat, name, value);
    }
    if (common_file_) {
      content.beside.push_back({std::string(kCommonFile), saved("common", *common)});
    } else {
      const Value& item = *make_list(arena_, ValueKind::kList, std::vector{common});
      content.ready[flat.objects.size()].content = saved("archive", item);
      add(flat, kCommonItem, &item);
    }
    content.beside.push_back({std::string(kConfigName), std::string(common_file_ ? kConfigWithCommon : kConfig)});
    return content;
  }

 private:
  const Originals::Item* item_of(const Value& value) const {
    return target_.originals == nullptr ? nullptr : target_.originals->items.find(&value);
  }

  /// Adds the objects that Megatron-Core's load requires, unless the source is of this format.
  void add_extra_states() {
    if (target_.originals != nullptr && target_.originals->format == kMegatronDistFormat.traits.name) return;
    HashSet<std::string_view> known;
    for (const auto& [name, value] : items_) known.insert(name);
    const Value* const none = make_list(arena_, ValueKind::kList, std::vector{make_value(arena_, ValueKind::kNone)});
    std::size_t made_up = 0;
    for (const std::string& name : extra_state_names(target_)) {
      if (known.contains(std::string_view(name))) continue;
      items_.emplace_back(arena_.copy(name), none);
      ++made_up;
    }
    if (made_up == 0) return;
    target_.warnings.push_back(fmt::format("{} of linear layers ('_extra_state') {} added that the source lacks",
                                           plural(static_cast<std::int64_t>(made_up), "empty object"),
                                           made_up == 1 ? "is" : "are"));
  }

  std::string saved(const std::string& folder, const Value& value) const {
    return dcp::saved_object(folder, value, target_.originals.get());
  }

  /// Sharded objects are kept unchanged. Plain data under a top-level key become common data unchanged. All others are
  /// named by dcp's rules.
  dcp::Flat flatten_others() {
    Value* const root = target_.root;
    if (root == nullptr || !is_mapping(*root)) return dcp::flatten(target_);
    std::vector<Value*> others;
    for (const auto [key, value] : ItemPairs(*root)) {
      if (key->is_string() && is_sharded_object(key->text())) {
        items_.emplace_back(key->text(), value);
      } else if (key->is_string() && !holds(*value, ValueKind::kTensor)) {
        common_.insert(common_.end(), {key, value});
      } else {
        others.insert(others.end(), {key, value});
      }
    }
    target_.root = make_list(arena_, ValueKind::kDict, others);
    dcp::Flat flat = dcp::flatten(target_);
    target_.root = root;
    return flat;
  }

  /// Refuses parts of an item with tensors or unknown classes, because such items are copied or dropped whole.
  static void check_written(std::string_view name, const Value& value) {
    if (!holds(value, ValueKind::kOpaque)) return;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("'{}' contains tensors or objects of unknown classes, and can be written only as a whole", name))
        .of_tensor(name)
        .because("a part of it is excluded or renamed")
        .suggest(Remedy::kExcludeMatching, glob_of_name(name) + ".**");
  }

  static bool holds(const Value& value, ValueKind kind) {
    return find_below(value, [kind](const Value& each) { return each.kind == kind; }) != nullptr;
  }

  static void add(dcp::Flat& flat, std::string_view name, const Value* value) {
    flat.objects.push_back({name, {}, static_cast<std::uint32_t>(flat.objects.size())});
    flat.values.push_back(value);
  }

  /// The dict of the objects, with the entries that a load requires. There is a warning for each created entry.
  Value* common_of(const dcp::Flat& flat) {
    std::vector<TreeEntry> entries;
    for (std::size_t i = 0; i < flat.objects.size(); ++i) {
      // An object without a value is an empty container that belongs to no tree.
      Value* const value =
          flat.values[i] == nullptr ? make_value(arena_, ValueKind::kNone) : copy_of(arena_, *flat.values[i]);
      entries.push_back({flat.objects[i].name, flat.objects[i].path, kNoIndex, value});
    }
    std::vector<Value*> items = common_;
    const std::span<Value*> named = mapping_items(*tree_of_paths(arena_, entries));
    items.insert(items.end(), named.begin(), named.end());
    for (const auto [key, value] : ItemPairs(items)) value = with_namespace(*key, value);
    const Value& known = *make_list(arena_, ValueKind::kDict, items);
    std::vector<std::string> made_up;
    const auto need = [&](std::string_view key, Value* value, std::string_view source = {}) {
      if (find_key(known, key) != nullptr) return;
      made_up.push_back(fmt::format("{}{}", key, source));
      items.insert(items.end(), {make_string(arena_, key), value});
    };
    need(kArguments, namespace_of(arena_, make_list(arena_, ValueKind::kDict, {})));
    need("checkpoint_version", make_float(arena_, 3.0));
    const std::optional<std::int64_t> iteration =
        target_.originals == nullptr ? std::nullopt : target_.originals->iteration;
    need("iteration", make_int(arena_, iteration.value_or(0)),
         iteration ? fmt::format(" ({}, from the folder's name)", *iteration) : std::string());
    if (!made_up.empty()) {
      target_.warnings.push_back(
          fmt::format("filled in Megatron-Core common data that the source lacks: {}", fmt::join(made_up, ", ")));
    }
    return make_list(arena_, ValueKind::kDict, items);
  }

  /// Restores the namespace from which a dict was read; `args` is always a namespace.
  Value* with_namespace(const Value& key, Value* value) {
    if (!is_mapping(*value)) return value;
    Value* const* known = target_.originals == nullptr ? nullptr : target_.originals->values.find(value);
    if (known != nullptr && *known != nullptr) return *known;
    return key.is_string() && key.text() == kArguments ? namespace_of(arena_, value) : value;
  }

  Catalog& target_;
  Arena& arena_;
  bool common_file_;
  std::vector<std::pair<std::string_view, const Value*>> items_;
  std::vector<Value*> common_;  ///< Keys and values, alternating.
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return dcp::make_folder_writer([common_file = choice(options.choices, kCoreVersion) == kCoreVersions.back()](
                                     Catalog& target) { return Content(target, common_file).run(); });
}

}  // namespace shard::megatron_dist
