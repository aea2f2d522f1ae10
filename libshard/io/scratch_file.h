/// \file
/// A file without a name, for bytes that do not fit in memory.
#pragma once

#include <cstdint>
#include <memory>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// A writer and a reader of one file. The file is removed when both are closed, or when the process ends.
struct ScratchFile {
  std::unique_ptr<FileWriter> writer;
  std::unique_ptr<RandomReader> reader;
};

/// Creates a file of `bytes`, whose space is reserved, in the folder for temporary files (TMPDIR, or else /var/tmp,
/// which unlike /tmp is rarely in memory).
/// \throws Error kResource  there is no such folder, or it has no room for the file.
ScratchFile make_scratch_file(std::int64_t bytes);

}  // namespace shard
