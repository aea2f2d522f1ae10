// The machine's operations on containers, the memo, and objects.

#include <algorithm>
#include <optional>

#include "formats/parts/pickle/machine.h"
#include "formats/parts/pickle/opcodes.h"
#include "libshard/core/ascii.h"
#include "libshard/core/utf8.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxModuleState = 256;  // Entries in the state of a torch.nn.Module.

/// The kinds of values from which Python builds an object of a subclass (__getnewargs__).
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

/// True for attributes that every module has and that contain no parameters.
bool is_module_setting(std::string_view name, const Value& value) {
  return value.kind == ValueKind::kBool || is_empty_container(value) || name == "_size" || name == "_keys" ||
         name == "_parameters";
}

/// True if `state` has only settings and `count` elements, minus those among the parameters.
bool has_only_elements(const Value& state, const Value& parameters, std::size_t count) {
  std::size_t others = 0;
  for (const auto [key, value] : ItemPairs(state)) {
    if (!key->is_string()) return false;
    if (!is_module_setting(key->text(), *value)) ++others;
  }
  return others + mapping_items(parameters).size() / 2 <= count;
}

// The longest global name. A long name could be repeated, and each use would compare it.
constexpr std::size_t kMaxGlobalBytes = 1024;

/// The Python 3 name of a module of Python 2, for modules whose pickles contain data.
std::string_view modern_module(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  return module == "copy_reg" ? "copyreg" : module;
}
std::string_view modern_builtin(std::string_view name) {
  if (name == "unicode") return "str";
  if (name == "xrange") return "range";
  return name == "long" ? "int" : name;
}

/// The class of the object that a call creates, if the callee or an argument names one; otherwise the callee.
const Value& class_made(const Value& callee, std::span<Value* const> arguments) {
  const bool names_first = callee.is_global("builtins", "getattr") || callee.is_global("copyreg", "_reconstructor");
  if (names_first && !arguments.empty()) return *arguments[0];
  return callee;
}

bool is_getattr_call(const Value& value) { return value.is_call_of("builtins", "getattr"); }

/// True for values that REDUCE and NEWOBJ may call: a class or function by name, or a class inside a class.
bool is_callable(const Value& value) {
  return value.kind == ValueKind::kGlobal || value.kind == ValueKind::kOpaque || is_getattr_call(value);
}

/// The bytes that protocol 2 spells as a text, one character per byte. `bytes` must have the text's length. \returns
/// the number of bytes written; nothing if a character is above 255.
std::optional<std::size_t> bytes_of_latin1(std::string_view text, std::span<char> bytes) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      bytes[count++] = text[i];
    } else if (first <= 0xC3 && i + 1 < text.size()) {
      bytes[count++] = static_cast<char>((first & 0x03) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return count;
}

bool is_latin1(const Value& value) {
  return value.is_string() && (value.text() == "latin1" || value.text() == "latin-1");
}

constexpr std::size_t kModuleIdParts = 4;   // ('module', class, file, source), as torch before 1.6 wrote it.
constexpr std::size_t kStorageIdParts = 5;  // ('storage', class, key, location, count), and perhaps a view.

/// The class in a persistent id of a module, or null.
Value* module_class(const Value& id) {
  if (id.items().size() != kModuleIdParts || id.items()[0]->text() != "module") return nullptr;
  const ValueKind kind = id.items()[1]->kind;
  return kind == ValueKind::kGlobal || kind == ValueKind::kOpaque ? id.items()[1] : nullptr;
}

/// True for an object that received or may receive items and state: a call, except one that only looks up a name.
bool is_object(const Value& value) { return value.kind == ValueKind::kCall && !is_getattr_call(value); }

}  // namespace

void Machine::push_collection(ValueKind kind, std::size_t count) {
  need(count);
  if (kind == ValueKind::kDict && count % 2 != 0) fail("a key without a value");
  Value* made = nodes_.make(kind);
  if (kind == ValueKind::kTuple || kind == ValueKind::kFrozenSet) {
    made->set_items(nodes_.fixed(last(count)));
  } else {
    nodes_.append(*made, last(count));
  }
  if (kind == ValueKind::kDict) {
    paired_.push_back(made);
    check_keys(*made, last(count), 2);
  } else if (kind == ValueKind::kFrozenSet) {
    check_keys(*made, last(count), 1);
  }
  note_parts(*made, last(count));
  drop(count);
  push(made);
}

void Machine::append(std::size_t count) {
  Value& target = below(count);
  if (target.kind != ValueKind::kList && is_subclass(target)) become_opaque(target);
  if (target.kind == ValueKind::kOpaque && count != 0) begin_filling(target, ValueKind::kList);
  note_parts(target, last(count));
  if (target.kind == ValueKind::kList) {
    nodes_.append(target, last(count));
  } else if (is_foreign_holder(target)) {
    // Its items are not kept.
  } else if (is_object(target)) {
    nodes_.append(nodes_.extra_of(target).list_items, last(count));
  } else if (target.kind != ValueKind::kOpaque) {
    fail("appends to a value that is not a list");
  } else if (Value* behind = call_behind(target)) {
    nodes_.append(nodes_.extra_of(*behind).list_items, last(count));
  }
  drop(count);
}

void Machine::set_items(std::size_t count) {
  Value& target = below(count);
  if (count % 2 != 0) fail("a key without a value");
  if (target.kind != ValueKind::kDict && is_subclass(target)) become_opaque(target);
  if (target.kind == ValueKind::kOpaque && count != 0) begin_filling(target, ValueKind::kDict);
  note_parts(target, last(count));
  if (target.kind != ValueKind::kOpaque && !is_foreign_holder(target)) {
    if (target.kind != ValueKind::kDict && !is_object(target)) fail("sets items of a value that is not a dict");
    const bool is_dict = target.kind == ValueKind::kDict;
    if (count != 0 && (is_dict ? target.items() : nodes_.extra_of(target).dict_items).empty())
      paired_.push_back(&target);
    is_dict ? nodes_.append(target, last(count)) : nodes_.append(nodes_.extra_of(target).dict_items, last(count));
    check_keys(target, last(count), 2);
  } else if (Value* behind = call_behind(target)) {
    nodes_.append(nodes_.extra_of(*behind).dict_items, last(count));
  }
  drop(count);
}

void Machine::add_items(std::size_t count) {
  Value& target = below(count);
  if (target.kind != ValueKind::kSet) fail("adds items to a value that is not a set");
  nodes_.append(target, last(count));
  note_parts(target, last(count));
  check_keys(target, last(count), 1);
  drop(count);
}

void Machine::put(std::uint64_t index) {
  // Picklers count upwards, so an index larger than the number of bytes read is damage. The check bounds the table by
  // the input's size.
  if (index > at_) fail(fmt::format("memo index {} is larger than the number of bytes before it", index));
  if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, nullptr);
  Value*& entry = memo_[static_cast<std::size_t>(index)];
  if (entry == nullptr) ++memo_count_;
  entry = &below(0);
}

void Machine::get(std::uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == nullptr) {
    fail(fmt::format("memo index {} is empty", index));
  }
  push_again(memo_[static_cast<std::size_t>(index)]);
}

/// Removes the topmost mark if it is on top, otherwise the topmost value.
void Machine::pop_value_or_mark() {
  if (!marks_.empty() && stack_.size() == marks_.back()) {
    marks_.pop_back();
  } else {
    need(1);
    drop(1);
  }
}

void Machine::persistent_id() {
  check_persistent_id(below(0));
  if (Value* named = module_class(below(0)); named != nullptr) {
    stack_.back() = named;
    return;
  }
  Value* id = nodes_.make(ValueKind::kPersid);
  id->set_items(nodes_.fixed(last(1)));
  stack_.back() = id;
  if (options_.persistent_ids != nullptr) options_.persistent_ids->push_back(id);
}

void Machine::check_persistent_id(const Value& id) const {
  if (options_.integer_ids && id.kind == ValueKind::kInt) return;
  if (id.kind != ValueKind::kTuple) fail(fmt::format("a persistent id of type {}, not a tuple", type_name(id)));
  if (id.items().empty() || !id.items()[0]->is_string()) fail("a persistent id that does not begin with its kind");
  const std::string_view kind = id.items()[0]->text();
  const std::size_t parts = id.items().size();
  if (kind == "storage" && parts >= kStorageIdParts) return;
  if (kind == "module" && module_class(id) != nullptr) return;
  if (kind != "storage" && kind != "module") fail("a persistent id that is neither of a storage nor of a module");
  fail(fmt::format("a persistent id of a {} with {} parts that are not torch's", kind, parts));
}

void Machine::global_line() {
  const std::string_view module = line();
  push_global(module, line());
}

void Machine::stack_global() {
  const Value& name = below(0);
  const Value& module = below(1);
  if (!name.is_string() || !module.is_string()) fail("module and name are not strings");
  drop(2);
  push_global(module.text(), name.text());
}

void Machine::push_global(std::string_view module, std::string_view name) {
  if (protocol_ < 3) {
    module = modern_module(module);
    if (module == "builtins") name = modern_builtin(name);
  }
  if (module.empty() || name.empty()) fail("a global without a module or a name");
  if (module.size() + name.size() > kMaxGlobalBytes) {
    fail(fmt::format("a global's name of {} bytes; the limit is {}", module.size() + name.size(), kMaxGlobalBytes));
  }
  std::string key = fmt::format("{}\n{}", module, name);
  if (Value* const* known = globals_.find(key)) return push(*known);
  if (!is_python_utf8(key)) fail("a global's name that is not UTF-8");
  const bool allowed = options_.allow && options_.allow(module, name);
  if (!allowed && !options_.opaque_unknown) forbid(module, name);
  Value* global = nodes_.make_global(allowed ? ValueKind::kGlobal : ValueKind::kOpaque, module, name);
  if (!allowed && options_.behind_opaque != nullptr) {
    options_.behind_opaque->try_emplace(global, nodes_.make_global(ValueKind::kGlobal, module, name));
  }
  globals_.try_emplace(std::move(key), global);
  push(global);
}

void Machine::forbid(std::string_view module, std::string_view name) const {
  Error error(ErrorCode::kCorruption,
              fmt::format("cannot read the pickle at byte {} ({}): it names {}.{}, which is not on the list of allowed "
                          "classes",
                          op_at_, op_name(static_cast<std::uint8_t>(data_[op_at_])), module, name));
  error.in_file(options_.file)
      .of_kind(FindingKind::kForbiddenGlobal)
      .found(fmt::format("{}.{}", module, name))
      .because("loading this file in Python would import it and could run code; shardctl ran nothing");
  if (options_.suggest_opaque) error.suggest(Remedy::kOpaqueGlobals);
  throw error;
}

void Machine::reduce() {
  const Value& callee = below(1);
  const Value& arguments = below(0);
  if (arguments.kind != ValueKind::kTuple) fail("arguments that are not a tuple");
  if (!is_callable(callee)) fail("calls a value that is not a class or function by name");
  if (callee.is_global("builtins", "getattr")) check_getattr(arguments);
  Value* data = plain_data(callee, arguments.items());
  if (data == nullptr) data = ordered_dict(below(1), arguments.items());
  if (data == nullptr) return push_call(false, nullptr);
  note_part(*data, below(0));
  drop(2);
  push(data);
}

/// The bytes, bytearray, set or frozenset that an older protocol spells as a call, so that values do not depend on the
/// protocol. Null for other calls.
Value* Machine::plain_data(const Value& callee, std::span<Value* const> arguments) {
  const std::size_t count = arguments.size();
  const bool is_latin1_text = count == 2 && arguments[0]->is_string() && is_latin1(*arguments[1]);
  if (callee.is_global("_codecs", "encode")) {
    return is_latin1_text ? latin1_bytes(ValueKind::kBytes, arguments[0]->text()) : nullptr;
  }
  if (callee.kind != ValueKind::kGlobal || callee.module() != "builtins" || count > 2) return nullptr;
  if (callee.text() == "bytes" && count == 0) return nodes_.make(ValueKind::kBytes);
  if (callee.text() == "bytearray") {
    if (is_latin1_text) return latin1_bytes(ValueKind::kByteArray, arguments[0]->text());
    const bool has_bytes = count == 1 && arguments[0]->kind == ValueKind::kBytes;
    if (has_bytes || count == 0) return nodes_.make_text(ValueKind::kByteArray, has_bytes ? arguments[0]->text() : "");
  }
  const bool is_set = callee.text() == "set";
  if ((!is_set && callee.text() != "frozenset") || count != 1 || arguments[0]->kind != ValueKind::kList) return nullptr;
  Value* set = nodes_.make(is_set ? ValueKind::kSet : ValueKind::kFrozenSet);
  nodes_.append(*set, arguments[0]->items());
  check_keys(*set, set->items(), 1);
  return set;
}

/// Converts OrderedDict([[key, value], ...]), Python 2's spelling, to the call and the assignments that Python 3
/// writes. Null for other calls.
Value* Machine::ordered_dict(Value& callee, std::span<Value* const> arguments) {
  if (!callee.is_global("collections", "OrderedDict")) return nullptr;
  if (arguments.size() != 1 || arguments[0]->kind != ValueKind::kList) return nullptr;
  const auto is_pair = [](const Value* item) {
    return (item->kind == ValueKind::kList || item->kind == ValueKind::kTuple) && item->items().size() == 2;
  };
  if (!std::ranges::all_of(arguments[0]->items(), is_pair)) return nullptr;
  Value* dict = nodes_.make_call(&callee, {});
  if (arguments[0]->items().empty()) return dict;
  std::span<Value*>& pairs = nodes_.extra_of(*dict).dict_items;
  for (const Value* item : arguments[0]->items()) nodes_.append(pairs, item->items());
  paired_.push_back(dict);
  check_keys(*dict, pairs, 2);
  return dict;
}

/// Bytes from their spelling in protocol 2; null if a character is above 255. Charges the text, because any number of
/// calls may have the same one.
Value* Machine::latin1_bytes(ValueKind kind, std::string_view text) {
  arena_.charge(Charge::kBytes, std::ssize(text));
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return nodes_.make_text(kind, text);
  const std::span<char> bytes = nodes_.characters(text.size());
  const std::optional<std::size_t> size = bytes_of_latin1(text, bytes);
  return size ? nodes_.make_text(kind, std::string_view(bytes.data(), *size)) : nullptr;
}

/// Protocol 2 spells nested classes as getattr(Class, 'Name'), and some Python versions spell enum members this way.
/// Nothing else is accepted: no values, no getattr of a getattr, no methods. Known enums have members in lower case.
void Machine::check_getattr(const Value& arguments) const {
  const bool two = arguments.items().size() == 2 && arguments.items()[1]->is_string();
  if (!two) fail("getattr without a class and a name");
  const ValueKind of = arguments.items()[0]->kind;
  if (of == ValueKind::kOpaque) return;
  if (of != ValueKind::kGlobal) fail("getattr of a value that is not a class by name");
  const std::string_view name = arguments.items()[1]->text();
  const bool may_be_lower = is_known_enum(arguments.items()[0]->module(), arguments.items()[0]->text());
  const auto begins_a_member = [&](char c) { return is_letter(c) && (may_be_lower || c == to_upper(c)); };
  const bool is_member = !name.empty() && begins_a_member(name[0]) && is_alphanumeric(name, "_");
  if (!is_member) fail("getattr of a name that is neither a class nor an enum member");
}

void Machine::new_object_with_keywords() {
  Value* kwargs = &below(0);
  if (kwargs->kind != ValueKind::kDict) fail("keyword arguments that are not a dict");
  drop(1);
  new_object(kwargs);
}

void Machine::new_object(Value* kwargs) {
  if (below(0).kind != ValueKind::kTuple) fail("arguments that are not a tuple");
  if (!is_callable(below(1))) fail("builds an object from a value that is not the name of a class");
  if (below(1).is_global("builtins", "getattr")) fail("getattr is not a class");
  push_call(true, kwargs);
}

/// Replaces callee and arguments, the last two values, by the call. An opaque class creates opaque objects, unless it
/// is a subclass of a built-in type. A torch call that rebuilds a tensor of an opaque class stays a call.
void Machine::push_call(bool is_new, Value* kwargs) {
  Value* callee = &below(1);
  Value& tuple = below(0);
  const std::span<Value*> arguments = tuple.items();
  const Value& made = class_made(*callee, arguments);
  drop(2);
  Value* opaque = nullptr;
  if (made.kind == ValueKind::kOpaque) {
    const bool has_own_call = &made == callee && kwargs == nullptr;
    Value* const plain = has_own_call && is_new ? plain_subclass(*callee, arguments) : nullptr;
    opaque = plain != nullptr ? plain : nodes_.make_text(ValueKind::kOpaque, made.text());
    if (plain == nullptr) opaque->module_bytes = made.module_bytes;
    note_part(*opaque, tuple);
    if (kwargs != nullptr) note_part(*opaque, *kwargs);
    if (has_own_call && arguments.empty()) expect_items(*opaque, *callee);
    if (plain != nullptr || options_.behind_opaque == nullptr) return push(opaque);
  }
  Value* call = nodes_.make_call(callee, arguments);
  note_part(*call, tuple);
  if (kwargs != nullptr) note_part(*call, *kwargs);
  call->is_new = is_new;
  if (kwargs != nullptr) nodes_.extra_of(*call).kwargs = kwargs;
  if (opaque != nullptr) options_.behind_opaque->try_emplace(opaque, call);
  push(opaque != nullptr ? opaque : call);
}

/// The original call of an opaque value, to which items and state are added; null if originals are not kept.
Value* Machine::call_behind(const Value& opaque) {
  if (options_.behind_opaque == nullptr) return nullptr;
  Value** behind = options_.behind_opaque->find(&opaque);
  return behind != nullptr && *behind != nullptr && (*behind)->kind == ValueKind::kCall ? *behind : nullptr;
}

void Machine::build() {
  Value& target = below(1);
  if (take_state(target, below(0))) return drop(1);
  note_part(target, below(0));
  if (target.kind != ValueKind::kOpaque && !is_foreign_holder(target)) {
    if (!is_object(target)) fail("sets the state of a value that is not an object");
    Value*& state = target.call->state;
    if (state != nullptr) fail("sets the state of an object twice");
    state = &below(0);
  } else if (Value* behind = call_behind(target)) {
    Value*& state = behind->call->state;
    state == nullptr ? void(state = &below(0)) : void((*options_.behind_opaque)[&target] = nullptr);
  }
  drop(1);
}

/// The value that a NEWOBJ call creates for later opcodes to fill, or null. A subclass of tuple with named fields
/// receives them as arguments.
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

/// Records an object that a call without arguments created and that the next opcodes may fill.
void Machine::expect_items(const Value& opaque, const Value& callee) {
  if (options_.behind_opaque == nullptr) subclasses_.try_emplace(&opaque, &callee);
}

/// Turns `target`, an opaque value without any items or state, into an empty list or dict. \returns false for others.
bool Machine::begin_filling(Value& target, ValueKind kind) {
  const Value* const* known = subclasses_.find(&target);
  if (known == nullptr || *known == nullptr) return false;
  target = Value();
  target.kind = kind;
  return true;
}

/// True if `target` was converted to a value of a built-in type because of its form.
bool Machine::is_subclass(const Value& target) const {
  if (target.kind == ValueKind::kOpaque || subclasses_.empty()) return false;
  const Value* const* known = subclasses_.find(&target);
  return known != nullptr && *known != nullptr;
}

/// Makes `target` opaque again, because it received a state that no built-in type has.
void Machine::become_opaque(Value& target) {
  const Value*& known = *subclasses_.find(&target);
  target = *known;
  known = nullptr;
  if (Value* const* const storage = storages_.find(&target)) make_holder(target, **storage);
}

/// Gives a state to an object of a subclass, or of a container of parameters. \returns whether `target` took it. If
/// not, it receives the state like any object.
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

/// The elements of a torch.nn.ParameterDict (with their keys) or ParameterList, from the state of that module. Empty if
/// some are missing.
std::vector<Value*> Machine::elements_of(const Value& state, const Value& parameters, std::span<Value* const> keys,
                                         std::size_t count) {
  HashMap<std::string_view, Value*> by_name;
  for (const auto [key, value] : ItemPairs(parameters)) by_name[key->text()] = value;
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

/// Converts torch.nn.ParameterDict and ParameterList. They are modules whose elements are parameters, or attributes if
/// they are not tensors. A module with hooks, buffers or other attributes is more than a container and is not
/// converted.
bool Machine::fill_with_parameters(Value& target, Value& state) {
  const bool is_dict = target.text() == "ParameterDict", is_list = target.text() == "ParameterList";
  if (target.module() != "torch.nn.modules.container" || (!is_dict && !is_list)) return false;
  if (state.kind != ValueKind::kDict || state.items().size() / 2 > kMaxModuleState) return false;
  const Value* const parameters = find_key(state, "_parameters");
  if (parameters == nullptr || !is_mapping(*parameters)) return false;
  const Value* const keys = find_key(state, "_keys");  // Missing before torch 1.12, like `_size`.
  const std::span<Value*> named = mapping_items(keys != nullptr && is_mapping(*keys) ? *keys : *parameters);
  const Value* const size = find_key(state, "_size");
  const std::size_t known = named.size() / 2;
  const bool is_sized = is_list && size != nullptr && size->kind == ValueKind::kInt;
  const std::size_t count = is_sized ? static_cast<std::size_t>(std::max<std::int64_t>(0, size->number)) : known;
  if (count > known + kMaxModuleState) return false;
  // Charged for each object, because many may have the same state.
  arena_.charge(Charge::kVisits, static_cast<std::int64_t>(known + mapping_items(*parameters).size() / 2 + count));
  for (const auto [key, value] : ItemPairs(named)) {
    if (!key->is_string()) return false;
  }
  if (!has_only_elements(state, *parameters, count)) return false;
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
