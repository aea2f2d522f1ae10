/// \file
/// Finds values of classes outside the list in a pickle.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/value_walk.h"

namespace shard::torch_save {

/// A hint for an object that contains the model's tensors as attributes.
inline constexpr const char* kModuleHint =
    "if it is a torch.nn.Module, save its state_dict() in Python, where the class exists";

/// The opaque values below a value.
struct Opaques {
  const Value* first = nullptr;    ///< Null if there is none.
  const Value* holding = nullptr;  ///< The class of the first object that contains tensors; null if there is none.
};

/// Finds opaque values at and below `value`. Two kinds do not count: those below tensors of foreign classes, because
/// such tensors are objects that no writer accepts (unsupported_tensor_kind), and values that `originals` carries over
/// (null: there are none). Cost: each node once for all calls with one `met`; nodes in it are not visited again.
Opaques find_opaques(const Value& value, VisitedSet& met, const Originals* originals = nullptr);

/// The error for an object that is or contains `opaque`.
Error foreign_class(const Value& opaque, const Value& object, std::string_view name);

/// Refuses the objects, from index `first` on, that contain values of classes outside the list. Reports each
/// (report_object) with kind forbidden_global and the path of its file, as `file_of` returns it.
void refuse_foreign_classes(const Catalog& catalog, std::size_t first,
                            const std::function<std::string_view(const Object&)>& file_of, Findings& findings);

}  // namespace shard::torch_save
