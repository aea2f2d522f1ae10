/// \file PartLayout: where an upload's object is cut into parts. Inside libshard/stores only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libshard/io/run_copies.h"

namespace shard {

struct PartLayout {
  /// A part whose bytes are all in one run.
  struct Copy {
    std::int64_t part = 0;
    std::size_t run = 0;
  };
  std::vector<std::int64_t> begins;  ///< The offset of each part, and at the end the size of the object.
  std::vector<Copy> copies{};        ///< In the order of parts.
};

/// Parts of equal size, of which the last one may be smaller.
PartLayout even_layout(std::int64_t object_bytes, std::int64_t part_bytes);

/// Cuts the object so that as many whole parts as possible are in runs. All parts but the last have at least 5 MiB and
/// at most `part_bytes`, or 10 MiB if that is more. Bytes that are in no run take up to 5 MiB of the run after them.
/// There are at most 10,000 parts. The shortest runs are not used if there would be more. Runs that are read are not
/// used.
/// \param runs  sorted, disjoint, in the object
/// \param sent_bytes  the end of the parts of an even_layout that remain
/// \pre part_bytes is at least 8 MiB, and a result of part_bytes_of
PartLayout layout_of_runs(std::int64_t object_bytes, std::int64_t part_bytes, std::span<const SourceRun> runs,
                          std::int64_t sent_bytes = 0);

}  // namespace shard
