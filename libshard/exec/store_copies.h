/// \file Copies that the store of the output makes itself (io/run_copies.h), before the workers begin. Inside
///   libshard/exec and libshard/job only.
#pragma once

#include <span>
#include <stop_token>

#include "libshard/exec/clones.h"
#include "libshard/io/output.h"

namespace shard {

/// Offers the runs in lines of bytes without replicas, within `tiles`, to the files of the output that can copy them.
/// Runs of adjacent tensors are joined. Only runs of source files in a store of URLs are offered. `checksums` (null if
/// the target has none) receives those of copied storages, which the source has. Runs of all others are read.
/// \returns what was copied; less if a stop was requested. \throws Error  see RunCopier
/// Memory: 56 bytes for each pair of overlapping pieces in those files.
Clones copy_in_store(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                     const Catalog& target, std::span<FileWriter* const> files, StorageChecksums* checksums,
                     const std::stop_token& stop, Progress& progress);

/// The bytes that copy_in_store would copy to new files of `output`, if no server refuses. \throws Error  as
/// Reader::file
std::int64_t bytes_to_copy_in_store(const Plan& plan, const Catalog& source, const Reader& reader,
                                    const Catalog& target, bool has_checksums, const OutputStore& output);

}  // namespace shard
