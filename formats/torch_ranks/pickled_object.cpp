#include "formats/torch_ranks/pickled_object.h"

#include <fmt/format.h>

#include "libshard/core/contains.h"

namespace shard::torch_ranks {

std::string_view subclass_name(const Value& value) {
  if (value.kind != ValueKind::kCall || value.callee() == nullptr || value.callee()->kind != ValueKind::kGlobal)
    return {};
  const bool rebuilds =
      value.callee()->text() == "_rebuild_from_type_v2" && value.callee()->module().starts_with("torch.");
  if (!rebuilds || value.items().size() < 2 || value.items()[1]->kind != ValueKind::kGlobal) return {};
  const Value& type = *value.items()[1];
  return type.module().starts_with("torch.distributed.") ? last_part(type.text()) : std::string_view();
}

Subclass subclass(const Value& value) {
  const std::string_view name = subclass_name(value);
  if (value.items().size() != 4)
    throw malformed(name, fmt::format("it is rebuilt from {} values", value.items().size()));
  const Value& function = *value.items()[0];
  if (function.kind != ValueKind::kGlobal || function.text() != "_rebuild_wrapper_subclass") {
    throw malformed(name, "it is not rebuilt by _rebuild_wrapper_subclass").found(type_name(function));
  }
  return {name, value.items()[2], value.items()[3]};
}

Wrapper wrapper(Arena& arena, const Subclass& from) {
  const std::span<Value* const> arguments = sequence(*from.arguments, from.name);
  if (arguments.size() < 8) throw malformed(from.name, fmt::format("it has {} arguments", arguments.size()));
  const Value& layout = *arguments[5];
  const bool is_named = layout.kind == ValueKind::kCall && !layout.items().empty() && layout.items()[0]->is_string();
  const std::string_view layout_name = is_named ? layout.items()[0]->text() : layout.text();
  if (layout_name != "torch.strided" && layout_name != "strided") {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}s of layout {} are not supported", from.name, layout_name))
        .because("only strided tensors have rows and columns");
  }
  return {dtype(*arguments[1], from.name), dims(arena, *arguments[2], from.name), boolean(*arguments[7], from.name),
          device(*arguments[6], arena, from.name)};
}

int dim_of(const Value& placement, int dimensions, std::string_view what) {
  const Value& dim = need(placement, "dim");
  if (dim.kind == ValueKind::kInt && dim.number >= -dimensions && dim.number < dimensions)
    return static_cast<int>(dim.number);
  throw malformed(what, "its dim is not a dimension of the tensor")
      .of_kind(FindingKind::kShapeMismatch)
      .expected(fmt::format("one of {}", dimensions))
      .found(dim.kind == ValueKind::kInt ? std::to_string(dim.number) : std::string(type_name(dim)));
}

std::string_view device(const Value& value, Arena& arena, std::string_view what) {
  if (value.is_string()) return value.text();
  if (!value.is_call_of("torch", "device") || value.items().empty() || value.items().size() > 2) {
    throw malformed(what, "its device is not one of torch's").found(type_name(value));
  }
  const std::string_view type = string(*value.items()[0], what);
  if (value.items().size() == 1) return type;
  return arena.copy(fmt::format("{}:{}", type, natural(*value.items()[1], what)));
}

}  // namespace shard::torch_ranks
