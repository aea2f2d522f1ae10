/// \file Presents a training checkpoint as a checkpoint of only its model.
#pragma once

#include <memory>

#include "libshard/checkpoint/reader.h"
#include "libshard/export/model_part.h"

namespace shard {

/// The model in `inner`: the tensors of `part` under their new names, each with a separate path, and their objects,
/// whose names are unchanged. \pre `part` belongs to inner's catalog. Cost: a copy of the catalog.
std::unique_ptr<Reader> model_reader(std::unique_ptr<Reader> inner, const ModelPart& part);

}  // namespace shard
