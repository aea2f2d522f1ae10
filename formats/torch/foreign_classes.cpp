#include "formats/torch/foreign_classes.h"

#include <fmt/format.h>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/parts/pickle/pickle.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/object_faults.h"

namespace shard::torch_save {

Opaques find_opaques(const Value& value, VisitedSet& met, const Originals* originals) {
  Opaques found;
  ValueWalk walk(value, &met);
  while (const Value* const each = walk.next()) {
    const Value& next = *each;
    const bool is_holder = pickle::is_foreign_holder(next);
    if (next.kind == ValueKind::kOpaque || is_holder) {
      walk.skip_children();
      if (originals != nullptr && originals->values.contains(&next)) continue;
      const Value* const type = is_holder ? next.callee() : &next;
      if (found.first == nullptr) found.first = type;
      if (found.holding == nullptr && is_holder) found.holding = type;
    } else if (!tensor_subclass(next).empty()) {
      walk.skip_children();
    }
  }
  return found;
}

Error foreign_class(const Value& opaque, const Value& object, std::string_view name) {
  if (pickle::is_known_global(opaque.module(), opaque.text())) {  // A dict or a set, see foreign_holder.h.
    return Error(ErrorCode::kUnsupported, fmt::format("object '{}' is or contains a value of type {} with tensors as "
                                                      "keys or elements, which cannot be kept",
                                                      name, opaque.text()))
        .of_tensor(name)
        .suggest(Remedy::kOpaqueGlobals);
  }
  const std::string shown = fmt::format("{}.{}", opaque.module(), opaque.text());
  Error error(ErrorCode::kCorruption,
              fmt::format("object '{}' {} {}, which is not on the list of allowed classes", name,
                          &opaque == &object || &opaque == object.callee() ? "is of the class"
                                                                           : "contains a value of the class",
                          shown));
  error.of_tensor(name)
      .of_kind(FindingKind::kForbiddenGlobal)
      .found(shown)
      .because("to load this file, Python would import it and could run its code; shardctl ran nothing")
      .suggest(Remedy::kOpaqueGlobals);
  if (pickle::is_foreign_holder(object)) error.hint(kModuleHint);
  return error;
}

void refuse_foreign_classes(const Catalog& catalog, std::size_t first,
                            const std::function<std::string_view(const Object&)>& file_of, Findings& findings) {
  VisitedSet met;
  for (std::size_t i = first; i < catalog.objects.size(); ++i) {
    const Object& object = catalog.objects[i];
    if (object.value == nullptr) continue;
    const Opaques found = find_opaques(*object.value, met);
    if (found.first == nullptr) continue;
    report_object(findings, object.name,
                  foreign_class(*found.first, *object.value, object.name).in_file(file_of(object)));
  }
}

}  // namespace shard::torch_save
