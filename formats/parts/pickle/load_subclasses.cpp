// Subclasses of built-in types, and torch's containers of parameters: what their pickles fill is data.
//
// A class outside the list is never resolved, so its base class is unknown. Its pickle shows it by its form: a call
// with a text, number or tuple makes a str, int, float, bytes or tuple of it, items that are appended or set make a
// list or a dict. An object that has more (a state, both kinds of items) stays opaque.

#include "formats/parts/pickle/machine.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxModuleState = 256;  // Entries in the state of a torch.nn.Module.

/// The kinds of values with which Python makes an object of a subclass (__getnewargs__).
bool is_made_with(ValueKind kind) {
  switch (kind) {
    case ValueKind::kString:
    case ValueKind::kBytes:
    case ValueKind::kInt:
    case ValueKind::kLong:
    case ValueKind::kFloat:
    case ValueKind::kTuple:
      return true;
    default:
      return false;
  }
}

bool is_empty_container(const Value& value) {
  return value.kind == ValueKind::kNone || (value.kind == ValueKind::kSet && value.items().empty()) ||
         (is_mapping(value) && mapping_items(value).empty());
}

/// Whether an attribute of every module says nothing of the parameters in it.
bool is_module_setting(std::string_view name, const Value& value) {
  return value.kind == ValueKind::kBool || is_empty_container(value) || name == "_size" || name == "_keys" ||
         name == "_parameters";
}

/// Whether `state` has nothing but settings and as many elements as `count`, less those among the parameters.
bool has_only_elements(const Value& state, const Value& parameters, std::size_t count) {
  const std::span<Value*> pairs = mapping_items(state);
  std::size_t others = 0;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (!pairs[i]->is_string()) return false;
    if (!is_module_setting(pairs[i]->text(), *pairs[i + 1])) ++others;
  }
  return others + mapping_items(parameters).size() / 2 <= count;
}

}  // namespace

/// The value that a call of NEWOBJ fills, or null. A tuple's subclass with named fields gets them as arguments.
Value* Machine::plain_subclass(const Value& callee, std::span<Value*> arguments) {
  if (options_.behind_opaque != nullptr || arguments.empty()) return nullptr;
  if (arguments.size() == 1 && !is_made_with(arguments[0]->kind)) return nullptr;
  Value* const made = nodes_.make(ValueKind::kTuple);
  if (arguments.size() == 1) {
    *made = *arguments[0];
  } else {
    made->set_items(arguments);
  }
  subclasses_.try_emplace(made, &callee);
  return made;
}

/// Notes an object that a call without arguments has made, and that the next opcodes may fill.
void Machine::expect_items(const Value& opaque, const Value& callee) {
  if (options_.behind_opaque == nullptr) subclasses_.try_emplace(&opaque, &callee);
}

/// Makes `target`, an opaque value that has received nothing, an empty list or dict. \returns false for another one.
bool Machine::begin_filling(Value& target, ValueKind kind) {
  const Value* const* known = subclasses_.find(&target);
  if (known == nullptr || *known == nullptr) return false;
  target = Value();
  target.kind = kind;
  return true;
}

/// Whether `target` was taken for a value of a built-in type because of its form.
bool Machine::is_subclass(const Value& target) const {
  if (target.kind == ValueKind::kOpaque || subclasses_.empty()) return false;
  const Value* const* known = subclasses_.find(&target);
  return known != nullptr && *known != nullptr;
}

/// Makes `target` opaque again: it received what no built-in type has.
void Machine::become_opaque(Value& target) {
  const Value*& known = *subclasses_.find(&target);
  target = *known;
  known = nullptr;
  if (Value* const* const storage = storages_.find(&target)) make_holder(target, **storage);
}

/// Gives a state to an object of a subclass, or of a container of parameters. \returns whether `target` took it: other
/// values may take it as objects do.
bool Machine::take_state(Value& target, Value& state) {
  if (target.kind == ValueKind::kOpaque) {
    if (is_empty_container(state)) return options_.behind_opaque == nullptr;
    if (fill_with_parameters(target, state)) return true;
    if (const Value** known = subclasses_.find(&target)) *known = nullptr;
    return false;
  }
  if (!is_subclass(target)) return false;
  if (is_empty_container(state)) return true;
  become_opaque(target);
  return false;
}

/// The elements of a torch.nn.ParameterDict (with their keys) or ParameterList, by the state of that module; empty
/// where they are not all there.
std::vector<Value*> Machine::elements_of(const Value& state, const Value& parameters, std::span<Value* const> keys,
                                         std::size_t count) {
  HashMap<std::string_view, Value*> by_name;
  const std::span<Value*> pairs = mapping_items(parameters);
  for (std::size_t i = 0; i < pairs.size(); i += 2) by_name[pairs[i]->text()] = pairs[i + 1];
  std::vector<Value*> elements;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = keys.empty() ? std::to_string(i) : std::string(keys[2 * i]->text());
    Value* const* const parameter = by_name.find(std::string_view(name));
    Value* const element = parameter != nullptr ? *parameter : find_key(state, name);
    if (element == nullptr) return {};
    if (!keys.empty()) elements.push_back(keys[2 * i]);
    elements.push_back(element);
  }
  return elements;
}

/// torch.nn.ParameterDict and ParameterList are modules: their elements are parameters or, if they are no tensors,
/// attributes. Hooks, buffers or other attributes make them more than containers.
bool Machine::fill_with_parameters(Value& target, Value& state) {
  const bool is_dict = target.text() == "ParameterDict", is_list = target.text() == "ParameterList";
  if (target.module() != "torch.nn.modules.container" || (!is_dict && !is_list)) return false;
  if (state.kind != ValueKind::kDict || state.items().size() / 2 > kMaxModuleState) return false;
  const Value* const parameters = find_key(state, "_parameters");
  if (parameters == nullptr || !is_mapping(*parameters)) return false;
  const Value* const keys = find_key(state, "_keys");  // Absent before torch 1.12, as is `_size`.
  const std::span<Value*> named = mapping_items(keys != nullptr && is_mapping(*keys) ? *keys : *parameters);
  for (std::size_t i = 0; i < named.size(); i += 2) {
    if (!named[i]->is_string()) return false;
  }
  const Value* const size = find_key(state, "_size");
  const std::size_t known = named.size() / 2;
  const bool is_sized = is_list && size != nullptr && size->kind == ValueKind::kInt;
  const std::size_t count = is_sized ? static_cast<std::size_t>(std::max<std::int64_t>(0, size->number)) : known;
  if (count > known + kMaxModuleState || !has_only_elements(state, *parameters, count)) return false;
  const std::vector<Value*> elements = elements_of(state, *parameters, is_dict ? named : std::span<Value*>(), count);
  if ((elements.empty() && count != 0) || !begin_filling(target, is_dict ? ValueKind::kDict : ValueKind::kList)) {
    return false;
  }
  nodes_.append(target, elements);
  note_part(target, state);
  if (is_dict) paired_.push_back(&target);
  return true;
}

}  // namespace shard::pickle
