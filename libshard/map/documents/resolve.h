/// \file
/// From a document as it is written to its rules as they are for these variables. Inside libshard/map only.
#pragma once

#include <string>

#include "libshard/map/documents/document.h"
#include "libshard/map/documents/variables.h"

namespace shard {

/// Puts variables into names, decides of what may be stacked whether it is, and adds the rules of states. What is left
/// has no condition but `when` of rules. Pure.
/// \throws Error kUnsupported      the document refuses what the variables say
/// \throws Error kInvalidArgument  a variable that decides is missing; names that are no templates then
void resolve(MapDocument& document, const MapVariables& variables);

/// A state of an optimizer whose tensors lie in flat buffers: the names of its logical tensors, and of the local ones,
/// which are called as the model's.
MapState flat_state(const std::string& state);

}  // namespace shard
