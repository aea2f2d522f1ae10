/// \file
/// A reader of a training checkpoint as one of its model alone.
#pragma once

#include <memory>

#include "libshard/checkpoint/reader.h"
#include "libshard/export/model_part.h"

namespace shard {

/// What is left of `inner`: the tensors of `part` under their new names, each a path of its own, and the objects with
/// them, which keep their names. \pre `part` is of inner's catalog. Cost: that of a copy of the catalog.
std::unique_ptr<Reader> model_reader(std::unique_ptr<Reader> inner, const ModelPart& part);

}  // namespace shard
