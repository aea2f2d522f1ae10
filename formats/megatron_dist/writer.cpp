#include "formats/megatron_dist/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "formats/dcp/writer.h"
#include "formats/megatron_dist/save_folder.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"

namespace shard::megatron_dist {
namespace {

constexpr std::string_view kConfig = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
constexpr std::string_view kConfigWithCommon =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";
constexpr std::string_view kArguments = "args";

bool is_sharded_object(std::string_view name) { return name.find("/shard_") != std::string_view::npos; }

Value* namespace_of(Arena& arena, Value* attributes) {
  Value* const made = make_call(arena, make_global(arena, "argparse", "Namespace"), {});
  extra_of(arena, *made).is_new = true;
  extra_of(arena, *made).state = attributes;
  return made;
}

Value* number(Arena& arena, double real) {
  Value* const value = make_value(arena, ValueKind::kFloat);
  value->real = real;
  return value;
}

/// Splits what a target holds into items and common data.
class Content {
 public:
  Content(Catalog& target, bool common_file) : target_(target), arena_(*target.arena), common_file_(common_file) {}

  dcp::FolderContent run() {
    dcp::FolderContent content{flatten_others(), false, {}};
    dcp::Flat& flat = content.flat;
    for (dcp::TensorLeaf& leaf : flat.tensors) leaf.path = Path({}, PathPart::of_key(leaf.name));
    Value* const common = common_of(flat);
    flat.objects.clear();
    flat.values.clear();
    for (const auto& [name, value] : items_) add(flat, name, value);
    if (common_file_) {
      content.beside.push_back({std::string(kCommonFile), dcp::saved_object("common", *common)});
    } else {
      add(flat, kCommonItem, make_list(arena_, ValueKind::kList, std::vector{common}));
    }
    content.beside.push_back({std::string(kConfigName), std::string(common_file_ ? kConfigWithCommon : kConfig)});
    return content;
  }

 private:
  /// Sharded objects stay as they are; dcp's rules name all else.
  dcp::Flat flatten_others() {
    Value* const root = target_.root;
    if (root == nullptr || !is_mapping(*root)) return dcp::flatten(target_);
    std::vector<Value*> others;
    const std::span<Value*> all = mapping_items(*root);
    for (std::size_t i = 0; i < all.size(); i += 2) {
      if (all[i]->is_string() && is_sharded_object(all[i]->text())) {
        items_.emplace_back(all[i]->text(), all[i + 1]);
      } else {
        others.insert(others.end(), {all[i], all[i + 1]});
      }
    }
    target_.root = make_list(arena_, ValueKind::kDict, others);
    dcp::Flat flat = dcp::flatten(target_);
    target_.root = root;
    return flat;
  }

  static void add(dcp::Flat& flat, std::string_view name, const Value* value) {
    flat.objects.push_back({name, {}, static_cast<std::uint32_t>(flat.objects.size())});
    flat.values.push_back(value);
  }

  /// The dict of the objects, with what a load asks for. What is made up is a warning.
  Value* common_of(const dcp::Flat& flat) {
    std::vector<TreeEntry> entries;
    for (std::size_t i = 0; i < flat.objects.size(); ++i) {
      // Objects without a value are empty containers of no tree.
      Value* const value = flat.values[i] == nullptr ? make_value(arena_, ValueKind::kNone) : copy(*flat.values[i]);
      entries.push_back({flat.objects[i].name, flat.objects[i].path, kNoIndex, value});
    }
    std::vector<Value*> items;
    const std::span<Value*> all = mapping_items(*tree_of_paths(arena_, entries));
    for (std::size_t i = 0; i < all.size(); i += 2) {
      const bool is_arguments = all[i]->is_string() && all[i]->text() == kArguments && is_mapping(*all[i + 1]);
      items.insert(items.end(), {all[i], is_arguments ? namespace_of(arena_, all[i + 1]) : all[i + 1]});
    }
    const Value& known = *make_list(arena_, ValueKind::kDict, items);
    std::vector<std::string_view> made_up;
    const auto need = [&](std::string_view key, Value* value) {
      if (find_key(known, key) != nullptr) return;
      made_up.push_back(key);
      items.insert(items.end(), {make_string(arena_, key), value});
    };
    need(kArguments, namespace_of(arena_, make_list(arena_, ValueKind::kDict, {})));
    need("checkpoint_version", number(arena_, 3.0));
    need("iteration", make_int(arena_, 0));
    if (!made_up.empty()) {
      target_.warnings.push_back(fmt::format(
          "the common data of Megatron-core is made up where the source has none: {}", fmt::join(made_up, ", ")));
    }
    return make_list(arena_, ValueKind::kDict, items);
  }

  Value* copy(const Value& value) {
    Value* const made = make_value(arena_, value.kind);
    *made = value;
    return made;
  }

  Catalog& target_;
  Arena& arena_;
  bool common_file_;
  std::vector<std::pair<std::string_view, const Value*>> items_;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  if (options.single_file) {
    throw Error(ErrorCode::kInvalidArgument, "cannot write megatron-dist as one file: it is a folder")
        .suggest(Remedy::kNameFolder);
  }
  return dcp::make_folder_writer(
      [common_file = options.common_file](Catalog& target) { return Content(target, common_file).run(); });
}

}  // namespace shard::megatron_dist
