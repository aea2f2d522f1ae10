/// \file
/// Opens the files of a source one by one if it cannot be opened as a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// Finds files that torch.save may have written among `paths`, and in the folders among them and below. The catalog
/// contains only files; check_container checks each. Null if there are none, or if some are files of dcp. Ownership:
/// `store` must outlive the result. Cost: opens each file; at most 10,000 are opened.
std::unique_ptr<Reader> open_loose_files(const SourceStore& store, const std::vector<std::string>& paths);

}  // namespace shard::torch_save
