/// \file
/// Several files with a master file, which shows the tensors of all as virtual datasets. Inside formats/hdf5 only.
///
/// A virtual dataset has at least one dimension and at least one element; other tensors lie in the master itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/hdf5/outline.h"
#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

inline constexpr const char* kMasterName = "master.h5";

struct Parts {
  std::uint32_t master = 0;                        ///< Its file, which is the last; files before it are parts.
  std::int64_t world_size = 0;                     ///< 0: the parts hold whole tensors and are not those of ranks.
  std::vector<std::vector<std::uint32_t>> chunks;  ///< By part: its chunks, in the order of tensors.
  std::vector<std::uint32_t> tensor_of_chunk;
};

/// Adds the master, moves to it what cannot be virtual, drops parts that hold nothing then, and names all files.
Parts arrange_parts(Catalog& target);

/// The datasets of a part. A second box of one tensor has its place behind its name. Fills in `paths`, by chunk.
Outline part_outline(const Catalog& target, const Parts& parts, std::uint32_t file, std::vector<std::string>& paths);

/// The tensors of all files. `paths` are those of chunks in their files.
/// \throws Error kUnsupported  a box of packed elements that is not a run of bytes.
Outline master_outline(const Catalog& target, const Parts& parts, const std::vector<std::string>& paths);

}  // namespace shard::hdf5
