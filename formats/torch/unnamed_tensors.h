/// \file
/// Tensors in containers where no name leads to them. For formats that read torch's pickles.
#pragma once

#include <string>
#include <vector>

#include "formats/torch/saved_file.h"

namespace shard::torch_save {

/// The names of the containers under `root` of which an attribute or an argument of the class is or holds a tensor (an
/// OrderedDict to which a list of tensors was given as an attribute): visit_leaves comes past no such tensor.
/// A container under several names is listed under one of them. Cost: each node once; `hidden`'s arena pays for what
/// is searched.
/// \throws Error kCorruption  the budget is spent.
std::vector<std::string> containers_with_unnamed_tensors(const Value& root, HiddenTensors& hidden);

}  // namespace shard::torch_save
