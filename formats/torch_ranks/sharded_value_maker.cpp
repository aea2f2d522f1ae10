#include "formats/torch_ranks/sharded_value_maker.h"

#include "libshard/core/box.h"
#include "libshard/core/parse_number.h"

namespace shard::torch_ranks {

Value* ShardedValueMaker::text(std::string_view content) {
  Value*& known = texts_[content];
  if (known == nullptr) known = make_string(arena_, content);
  return known;
}

Value* ShardedValueMaker::integer(std::int64_t number) {
  Value*& known = integers_[number];
  if (known == nullptr) known = make_int(arena_, number);
  return known;
}

Value* ShardedValueMaker::boolean(bool value) { return make_bool(arena_, value); }

Value* ShardedValueMaker::global(std::string_view module, std::string_view name) {
  Value*& known = globals_[std::string(module) + " " + std::string(name)];
  if (known == nullptr) known = make_global(arena_, module, name);
  return known;
}

Value* ShardedValueMaker::integers(ValueKind kind, std::span<const std::int64_t> numbers) {
  std::vector<Value*> items;
  for (const std::int64_t number : numbers) items.push_back(integer(number));
  return make_list(arena_, kind, items);
}

Value* ShardedValueMaker::tuple(std::initializer_list<Value*> items) {
  return make_list(arena_, ValueKind::kTuple, std::span(items.begin(), items.size()));
}

Value* ShardedValueMaker::dict(const Attributes& attributes) {
  std::vector<Value*> items;
  for (const auto& [key, value] : attributes) items.insert(items.end(), {text(key), value});
  return make_list(arena_, ValueKind::kDict, items);
}

Value* ShardedValueMaker::instance(Value* cls, std::span<Value* const> arguments, Value* state) {
  Value* made = make_call(arena_, cls, arguments);
  CallExtra& extra = extra_of(arena_, *made);
  extra.is_new = true;
  extra.state = state;
  return made;
}

Value* ShardedValueMaker::size(Dims shape) {
  Value* argument = tuple({integers(ValueKind::kTuple, shape)});
  return make_call(arena_, global("torch", "Size"), argument->items());
}

Value* ShardedValueMaker::strides(Dims shape) {
  std::int64_t numbers[kMaxDims];
  const auto used = std::span(numbers).first(static_cast<std::size_t>(shape.size()));
  row_major_strides(shape, used);
  return integers(ValueKind::kTuple, used);
}

// device('cpu') or device('cuda', 1), as torch pickles "cuda:1".
Value* ShardedValueMaker::device(std::string_view text_of_device) {
  Value*& known = devices_[text_of_device];
  if (known != nullptr) return known;
  const std::size_t colon = text_of_device.find(':');
  std::vector<Value*> arguments{text(text_of_device.substr(0, colon))};
  if (colon != std::string_view::npos) {
    std::string_view digits = text_of_device.substr(colon + 1);
    arguments.push_back(integer(take_number(digits).value_or(0)));
  }
  return known = make_call(arena_, global("torch", "device"), arguments);
}

Value* ShardedValueMaker::wrapper(Value* cls, DType dtype, Dims shape, std::string_view device_text, bool requires_grad,
                                  Value* state) {
  Value* strided = tuple({text("torch.strided")});
  Value* layout = make_call(arena_, global("torch.serialization", "_get_layout"), strided->items());
  Value* arguments = tuple({cls, global("torch", dtype_name(dtype)), integers(ValueKind::kTuple, shape), strides(shape),
                            integer(0), layout, device(device_text), boolean(requires_grad)});
  Value* all = tuple({global("torch._utils", "_rebuild_wrapper_subclass"), cls, arguments, state});
  return make_call(arena_, global("torch._tensor", "_rebuild_from_type_v2"), all->items());
}

}  // namespace shard::torch_ranks
