#include "formats/torch/load_tree.h"

#include <fmt/format.h>

#include "formats/torch/unnamed_tensors.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

// True for Parameter(data) and Variable(data) with the state (requires_grad, volatile, hooks), as torch 0.3 and 0.4
// pickled them.
bool is_old_parameter(const Value& value) {
  const bool names_class =
      value.is_call_of("torch.nn.parameter", "Parameter") || value.is_call_of("torch.autograd.variable", "Variable");
  return names_class && !value.items().empty() && value.items().size() <= 2;
}

// Converts such a call to today's form.
void modernize(Arena& arena, Value& node) {
  const Value* state = node.state();
  const bool has_state = state != nullptr && state->kind == ValueKind::kTuple && !state->items().empty();
  const Value* flag = has_state ? state->items()[0] : (node.items().size() == 2 ? node.items()[1] : nullptr);
  Value* requires_grad = make_bool(arena, flag == nullptr || flag->kind != ValueKind::kBool || flag->boolean());
  Value* const hooks = make_call(arena, make_global(arena, "collections", "OrderedDict"), {});
  Value* const arguments[] = {node.items()[0], requires_grad, hooks};
  node = *make_call(arena, make_global(arena, "torch._utils", "_rebuild_parameter"), arguments);
}

}  // namespace

void TreeLoader::load(Value& root) {
  try {
    visit_leaves(
        *catalog_.arena, root, [](const Value&) { return false; },
        [this](const TreeLeaf& leaf) {
          try {
            visit(leaf);
          } catch (Error& error) {
            throw error.of_tensor(leaf.name);
          }
        });
  } catch (Error& error) {
    throw error.in_file(catalog_.files[file_].path);
  }
  warn(flagged_, "conjugated or negated view is read as its values",
       "conjugated or negated views are read as their values");
  warn(attributed_, "tensor is read without the attributes of its Python object",
       "tensors are read without the attributes of their Python objects");
  for (const std::string& name : containers_with_unnamed_tensors(root, hidden_)) holding_.add(name);
  if (holding_.count() > 0) {
    catalog_.warnings.push_back(fmt::format("{}: did not list tensors stored as attributes of objects: {}",
                                            catalog_.files[file_].path, holding_.text()));
  }
  warn(moved_, "tensor of a device without storages is read as a cpu tensor",
       "tensors of devices without storages are read as cpu tensors");
}

void TreeLoader::warn(const FirstNames& names, std::string_view one, std::string_view many) {
  if (names.count() == 0) return;
  catalog_.warnings.push_back(fmt::format("{}: {}: {}", catalog_.files[file_].path,
                                          plural(static_cast<std::int64_t>(names.count()), one, many), names.text()));
}

void TreeLoader::visit(const TreeLeaf& leaf) {
  if (is_old_parameter(*leaf.value)) modernize(*catalog_.arena, *leaf.value);
  if (drop_attributes(*catalog_.arena, *leaf.value, hidden_)) attributed_.add(leaf.name);
  const bool wrapped = is_parameter(*leaf.value, hidden_);
  Value& node = wrapped ? *leaf.value->items()[0] : *leaf.value;
  if (node.kind == ValueKind::kTensor) return add_again(leaf, node);
  const std::optional<TensorView> view = as_tensor(*catalog_.arena, node);
  if (!view) return add_object(leaf);
  if (view->conj || view->neg) flagged_.add(leaf.name);
  if (view->has_attributes) attributed_.add(leaf.name);
  if (!view->device.empty()) moved_.add(leaf.name);
  add_tensor(leaf, node, *view, wrapped ? leaf.value->items()[1]->boolean() : view->requires_grad);
  catalog_.stored.back().has_attributes = wrapped && has_attributes(*leaf.value);
}

void TreeLoader::add_tensor(const TreeLeaf& leaf, Value& node, const TensorView& view, bool requires_grad) {
  StoredTensor stored = stored_tensor(view, files_.storage_of(file_, view));
  stored.requires_grad = requires_grad;
  become_tensor(node, builder_.add_tensor(leaf.name, compact_path(leaf.path, leaf.name), stored));
}

// Adds an entry for a further name of a tensor object. The node keeps the number of the first name.
void TreeLoader::add_again(const TreeLeaf& leaf, const Value& node) {
  const StoredTensor stored = catalog_.stored_of(catalog_.tensors[static_cast<std::size_t>(node.number)]);
  builder_.add_tensor(leaf.name, compact_path(leaf.path, leaf.name), stored);
}

void TreeLoader::add_object(const TreeLeaf& leaf) {
  catalog_.objects.push_back({leaf.name, compact_path(leaf.path, leaf.name), leaf.value, -1});
  if (hidden_.kind_in(*leaf.value) == "attribute") holding_.add(leaf.name);
}

}  // namespace shard::torch_save
