/// \file
/// Values that this build does not read although they may be intact.
#pragma once

#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"

namespace shard::app {

/// Reports each object that is, or contains, a value of a class outside the list, as a finding of kind
/// forbidden_global. `found()` is the class.
/// \pre the objects' values are loaded, with classes outside the list as opaque values. Cost: linear in all values.
void report_unread_values(const Catalog& catalog, Findings& findings);

}  // namespace shard::app
