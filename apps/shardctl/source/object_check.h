/// \file
/// Refuses objects that must not be skipped silently.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/findings.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/short_text.h"

namespace shard::app {

/// The objects to check, and the conditions.
struct ObjectCheck {
  const SelectionOptions& selection;
  const std::vector<std::string>& arguments;  ///< The command line, for the hint.
  std::string_view done;                      ///< The operation that fails for them: "written".
  bool takes_objects = true;      ///< False: the target cannot store objects, so the hint also drops the other objects.
  std::string_view written_as{};  ///< The format that copies opaque values unchanged (Originals).
  const ObjectFaults* faults = nullptr;  ///< Null: unreadable objects are dropped.
  /// --objects drop may skip objects that contain tensors, except those among the model's tensors.
  bool may_drop_tensors = false;
};

/// Refuses values that look like objects but must not be skipped silently, not even with --objects drop: sparse and
/// quantized tensors, tensor subclasses, bare storages and the like. Also refuses values of unknown classes
/// (--unknown-globals opaque), and values of known ones with tensors that the catalog does not list (a deque of
/// tensors), unless --objects drop skips them. \returns the skipped objects that contain tensors \throws Error
/// kUnsupported  the selection contains such values; the hint is a command that skips all of them. \throws Error  the
/// fault of a selected object.
FirstNames check_objects(const Catalog& catalog, const ObjectCheck& check);

/// "skipped 2 objects with tensors: ..."; empty if there are none.
std::string dropped_tensors_text(const FirstNames& dropped);

/// Filters objects by index: those that contain tensors which no verb reads, because the catalog does not list them or
/// such tensors cannot be written.
FirstNames objects_with_tensors(const Catalog& catalog, const std::function<bool(std::uint32_t object)>& takes);

// Values that this build does not read although they may be intact.

/// Reports each object that is, or contains, a value of a class outside the list, as a finding of kind
/// forbidden_global. `found()` is the class.
/// \pre the objects' values are loaded, with classes outside the list as opaque values. Cost: linear in all values.
void report_unread_values(const Catalog& catalog, Findings& findings);

}  // namespace shard::app
