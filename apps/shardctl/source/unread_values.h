/// \file
/// Values of a checkpoint that this build does not read, though they may be whole.
#pragma once

#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"

namespace shard::app {

/// Reports each object that is a value of a class outside the list, or holds one, by a finding of kind
/// forbidden_global: `found()` is the class. \pre the objects' values were loaded, with classes outside the list as
/// opaque values. Cost: linear in all values.
void report_unread_values(const Catalog& catalog, Findings& findings);

}  // namespace shard::app
