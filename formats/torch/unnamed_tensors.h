/// \file
/// Finds tensors that have no name in their container. For formats that read torch's pickles.
#pragma once

#include <string>
#include <vector>

#include "formats/torch/saved_file.h"

namespace shard::torch_save {

/// The names of the containers under `root` with a tensor in an attribute or in an argument of the class (an
/// OrderedDict with a list of tensors as an attribute). visit_leaves does not reach such tensors. A container with
/// several names is listed once. Cost: each node once; the search is charged to the budget of `hidden`'s arena.
/// \throws Error kCorruption  the budget is exhausted.
std::vector<std::string> containers_with_unnamed_tensors(const Value& root, HiddenTensors& hidden);

}  // namespace shard::torch_save
