/// \file
/// A file without a name, for bytes that do not fit in memory.
#pragma once

#include <cstdint>
#include <memory>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Both ends of one file. It is gone when both are closed, or with the process.
struct ScratchFile {
  std::unique_ptr<FileWriter> writer;
  std::unique_ptr<RandomReader> reader;
};

/// A file of `bytes`, whose space is reserved, in the folder for temporary files (TMPDIR, else /var/tmp, which is
/// seldom memory as /tmp may be). \throws Error kResource  there is no such folder, or it cannot hold the file.
ScratchFile make_scratch_file(std::int64_t bytes);

}  // namespace shard
