/// \file
/// Values of classes outside the list, among those that a pickle holds.
#pragma once

#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/visited.h"

namespace shard::torch_save {

/// The opaque values below a value.
struct Opaques {
  const Value* first = nullptr;    ///< Null: there is none.
  const Value* holding = nullptr;  ///< The class of the first object that holds tensors; null: there is none.
};

/// Looks for opaque values at and below `value`. Those below tensors of foreign classes do not count: such tensors are
/// objects that no writer takes (unsupported_tensor_kind). Values that `originals` carries over do not count either;
/// null: there are none. Cost: each node once for all calls with one `met`; nodes that it has are not visited again.
Opaques find_opaques(const Value& value, VisitedSet& met, const Originals* originals = nullptr);

/// The refusal of an object that is or holds `opaque`.
Error foreign_class(const Value& opaque, const Value& object, std::string_view name);

/// Refuses the objects with values of classes outside the list, from index `first` on, of `file`: reports each
/// (report_object), of kind forbidden_global.
void refuse_foreign_classes(const Catalog& catalog, std::size_t first, std::string_view file, Findings& findings);

}  // namespace shard::torch_save
