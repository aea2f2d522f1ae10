#include "shardtorch/state/values.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/core/utf8.h"

namespace shard {

namespace {

void check_depth(int depth) {
  if (depth > kMaxValueDepth) {
    throw Error(ErrorCode::kUnsupported, "containers are nested too deeply, or contain themselves");
  }
}

/// Runs `convert`, and prefixes errors from inside a container with the path.
template <class Name, class Convert>
auto inside(const Name& name, const Convert& convert) {
  try {
    return convert();
  } catch (Error& error) {
    const std::string rest = error.tensor();
    throw error.of_tensor(rest.empty() ? name() : name() + "." + rest);
  }
}

std::string key_text(const c10::IValue& key) { return key.isString() ? key.toStringRef() : c10::str(key); }

class Packer {
 public:
  Packer(Arena& arena, const ToValue& tensor) : arena_(arena), tensor_(tensor) {}

  Value* pack(const c10::IValue& value, int depth = 0) {
    if (value.isTensor()) return tensor_(value.toTensor());
    if (value.isInt()) return make_int(arena_, value.toInt());
    if (value.isString()) return text(value.toStringView());
    if (value.isTuple() || value.isList() || value.isGenericDict()) return container(value, depth);
    return scalar(value);
  }

  Value* pack(const StateDict& state) {
    std::vector<Value*> items;
    items.reserve(2 * state.size());
    for (const auto& item : state) {
      const auto name = [&item] { return item.key(); };
      items.push_back(inside(name, [&] { return text(item.key()); }));
      items.push_back(inside(name, [&] { return pack(item.value()); }));
    }
    return make_list(arena_, ValueKind::kDict, items);
  }

 private:
  Value* text(std::string_view utf8) {
    if (is_python_utf8(utf8)) return make_string(arena_, utf8);
    throw Error(ErrorCode::kUnsupported, "a string that is not UTF-8 cannot be saved");
  }

  Value* scalar(const c10::IValue& value) {
    if (value.isNone()) return make_value(arena_, ValueKind::kNone);
    if (value.isDouble()) return make_float(arena_, value.toDouble());
    if (value.isBool()) return make_bool(arena_, value.toBool());
    if (value.isComplexDouble()) {
      const c10::complex<double> number = value.toComplexDouble();
      Value* const parts[] = {make_float(arena_, number.real()), make_float(arena_, number.imag())};
      return make_call(arena_, make_global(arena_, "builtins", "complex"), parts);
    }
    throw Error(ErrorCode::kUnsupported, "a state dict cannot contain values of type " + value.tagKind());
  }

  /// A container that occurs several times becomes one node, as in Python.
  Value* container(const c10::IValue& value, int depth) {
    check_depth(depth);
    Value*& known = known_[value.internalToPointer()];
    if (known != nullptr) return known;
    if (value.isGenericDict()) return known = dict(value.toGenericDict(), depth);
    if (value.isTuple()) return known = list(ValueKind::kTuple, value.toTupleRef().elements(), depth);
    return known = list(ValueKind::kList, value.toList(), depth);
  }

  template <class Elements>
  Value* list(ValueKind kind, const Elements& elements, int depth) {
    std::vector<Value*> items;
    items.reserve(elements.size());
    for (const c10::IValue& element : elements) {
      items.push_back(
          inside([&items] { return std::to_string(items.size()); }, [&] { return pack(element, depth + 1); }));
    }
    return make_list(arena_, kind, items);
  }

  Value* dict(const c10::impl::GenericDict& entries, int depth) {
    std::vector<Value*> items;
    items.reserve(2 * entries.size());
    for (const auto& entry : entries) {
      items.push_back(pack(entry.key(), depth + 1));
      items.push_back(
          inside([&entry] { return key_text(entry.key()); }, [&] { return pack(entry.value(), depth + 1); }));
    }
    return make_list(arena_, ValueKind::kDict, items);
  }

  Arena& arena_;
  const ToValue& tensor_;
  std::unordered_map<const void*, Value*> known_;  ///< By container. The containing values outlive this.
};

c10::TypePtr type_of(const c10::IValue& value) {
  return value.isTensor() ? c10::TypePtr(c10::TensorType::get()) : value.type();
}

/// The common type of all of them; Any if there is none.
c10::TypePtr common_type(const std::vector<c10::IValue>& values) {
  if (values.empty()) return c10::AnyType::get();
  c10::TypePtr type = type_of(values.front());
  for (const c10::IValue& value : values) {
    if (*type_of(value) != *type) return c10::AnyType::get();
  }
  return type;
}

/// A dict, or an OrderedDict without attributes other than `_metadata`.
bool is_dict(const Value& value) {
  if (value.kind == ValueKind::kDict) return true;
  if (!value.is_call_of("collections", "OrderedDict")) return false;
  if (value.state() == nullptr) return true;
  const std::span<Value*> attributes = mapping_items(*value.state());
  return attributes.size() == 2 && attributes[0]->is_string() && attributes[0]->text() == "_metadata";
}

bool is_complex(const Value& value) {
  return value.is_call_of("builtins", "complex") && value.items().size() == 2 &&
         value.items()[0]->kind == ValueKind::kFloat && value.items()[1]->kind == ValueKind::kFloat;
}

class Unpacker {
 public:
  explicit Unpacker(const FromValue& special) : special_(special) {}

  c10::IValue unpack(const Value& value, int depth = 0) {
    switch (value.kind) {
      case ValueKind::kNone:
        return {};
      case ValueKind::kBool:
        return value.boolean();
      case ValueKind::kInt:
        return value.number;
      case ValueKind::kFloat:
        return value.real;
      case ValueKind::kString:
        return std::string(value.text());
      default:
        break;
    }
    if (const auto known = known_.find(&value); known != known_.end()) return known->second;
    check_depth(depth);
    return known_[&value] = unpack_object(value, depth);
  }

  StateDict unpack_state(const Value& root) {
    if (!is_dict(root)) {
      throw Error(ErrorCode::kUnsupported, "cannot read the file as a state")
          .expected("a dict of names")
          .found(type_name(root));
    }
    const std::span<Value*> items = mapping_items(root);
    StateDict state;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string()) {
        throw Error(ErrorCode::kUnsupported, "names of a state are strings").found(type_name(*items[i]));
      }
      const std::string name(items[i]->text());
      set(state, name, inside([&name] { return name; }, [&] { return unpack(*items[i + 1]); }));
    }
    return state;
  }

 private:
  /// Takes the last of equal keys, as Python does.
  static void set(StateDict& state, const std::string& name, c10::IValue value) {
    if (c10::IValue* known = state.find(name)) {
      *known = std::move(value);
    } else {
      state.insert(name, std::move(value));
    }
  }

  c10::IValue unpack_object(const Value& value, int depth) {
    if (value.kind == ValueKind::kTuple) return c10::ivalue::Tuple::create(unpack_all(value.items(), depth));
    if (value.kind == ValueKind::kList) return list(value, depth);
    if (is_dict(value)) return dict(value, depth);
    if (is_complex(value)) return c10::complex<double>(value.items()[0]->real, value.items()[1]->real);
    if (special_) {
      if (std::optional<c10::IValue> found = special_(value)) return std::move(*found);
    }
    const std::string kind(value.kind == ValueKind::kLong ? "int of more than 64 bits" : type_name(value));
    throw Error(ErrorCode::kUnsupported, "a state dict cannot contain a value of type " + kind);
  }

  std::vector<c10::IValue> unpack_all(std::span<Value* const> items, int depth) {
    std::vector<c10::IValue> values;
    values.reserve(items.size());
    for (const Value* item : items) {
      values.push_back(
          inside([&values] { return std::to_string(values.size()); }, [&] { return unpack(*item, depth + 1); }));
    }
    return values;
  }

  /// Lists and dicts of C++ have element types. Mixed ones become Any.
  c10::IValue list(const Value& value, int depth) {
    const std::vector<c10::IValue> values = unpack_all(value.items(), depth);
    c10::impl::GenericList list(common_type(values));
    list.reserve(values.size());
    for (const c10::IValue& each : values) list.push_back(each);
    return list;
  }

  c10::IValue key(const Value& value) {
    const bool is_known = value.is_string() || value.kind == ValueKind::kInt || value.kind == ValueKind::kBool ||
                          value.kind == ValueKind::kFloat;
    if (is_known) return unpack(value);
    throw Error(ErrorCode::kUnsupported, "a state dict cannot have keys of type " + std::string(type_name(value)));
  }

  c10::IValue dict(const Value& value, int depth) {
    const std::span<Value*> items = mapping_items(value);
    std::vector<c10::IValue> keys, values;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      keys.push_back(key(*items[i]));
      values.push_back(
          inside([&keys] { return key_text(keys.back()); }, [&] { return unpack(*items[i + 1], depth + 1); }));
    }
    c10::impl::GenericDict dict(common_type(keys), common_type(values));
    for (std::size_t i = 0; i < keys.size(); ++i) dict.insert_or_assign(keys[i], values[i]);
    return dict;
  }

  const FromValue& special_;
  std::unordered_map<const Value*, c10::IValue> known_;
};

}  // namespace

Value* to_value(Arena& arena, const c10::IValue& value, const ToValue& tensor) {
  return Packer(arena, tensor).pack(value);
}

Value* to_value(Arena& arena, const StateDict& state, const ToValue& tensor) {
  return Packer(arena, tensor).pack(state);
}

c10::IValue to_ivalue(const Value& value, const FromValue& special) { return Unpacker(special).unpack(value); }

StateDict to_state_dict(const Value& root, const FromValue& special) { return Unpacker(special).unpack_state(root); }

}  // namespace shard
