/// \file Resolves a document as written into its rules for given variables. Inside libshard/map only.
#pragma once

#include <string>

#include "libshard/map/documents/document.h"
#include "libshard/map/documents/variables.h"

namespace shard {

/// Replaces variables in names, decides which optional stacks apply, and adds the rules of states. The only conditions
/// that remain are those in `when` of rules. Pure.
/// \throws Error kUnsupported      the document refuses the values of the variables
/// \throws Error kInvalidArgument  a variable that decides is missing; names are not templates after the replacement
void resolve(MapDocument& document, const MapVariables& variables);

/// An optimizer state whose tensors are in flat buffers: the names of its logical tensors, and of the local ones, which
/// have the same names as the model's.
MapState flat_state(const std::string& state);

}  // namespace shard
