/// \file
/// Objects that must not be skipped in silence.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/first_names.h"
#include "libshard/core/object_faults.h"

namespace shard::app {

/// What is asked of the objects of a source.
struct ObjectCheck {
  const SelectionOptions& selection;
  const std::vector<std::string>& arguments;  ///< The command line, for the hint.
  std::string_view done;                      ///< What cannot be done with them: "written".
  bool takes_objects = true;                  ///< False: other objects must be dropped too; the hint then does so.
  std::string_view written_as{};              ///< The format that carries opaque values over (Originals).
  const ObjectFaults* faults = nullptr;       ///< Null: those that cannot be read are dropped.
  /// Objects of unknown classes that hold tensors may be left out by --objects drop, but for those among the model's
  /// tensors.
  bool may_drop_tensors = false;
};

/// Refuses values that look like objects but must not be skipped silently, not even with --objects drop: sparse and
/// quantized tensors, tensor subclasses, bare storages and the like. Values of unknown classes (--unknown-globals
/// opaque) are refused too, unless --objects drop leaves them out. \returns the objects that hold tensors and are left
/// out so.
/// \throws Error kUnsupported  the selection chooses some; the hint is the line that leaves all of them out.
/// \throws Error  the fault of a chosen object.
FirstNames check_objects(const Catalog& catalog, const ObjectCheck& check);

/// "2 objects that hold tensors are left out: ..."; empty where there are none.
std::string dropped_tensors_text(const FirstNames& dropped);

/// Those of the objects with these indices that hold tensors which no verb reads: they are of unknown classes, or
/// tensors of kinds that cannot be written.
FirstNames objects_with_tensors(const Catalog& catalog, const std::function<bool(std::uint32_t object)>& takes);

}  // namespace shard::app
