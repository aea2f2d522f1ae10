/// \file
/// The files of a source that cannot be opened as a checkpoint, one by one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// Files of `paths`, and files in folders among them and below these, that torch.save may have written.
/// The catalog has nothing but files; check_container checks each. Null: there are none, or files of dcp are
/// among them. Ownership: `store` must outlive
/// the result. Cost: opens each file; 10,000 at most are looked at.
std::unique_ptr<Reader> open_loose_files(const SourceStore& store, const std::vector<std::string>& paths);

}  // namespace shard::torch_save
