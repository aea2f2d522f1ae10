#include "libshard/core/finding_kind.h"

#include <array>

namespace shard {

std::string_view kind_name(FindingKind kind) {
  static constexpr std::array<std::string_view, kFindingKindCount> kNames{
      "truncated",           "crc_mismatch",     "hash_mismatch",  "bad_header",    "bad_pickle",
      "forbidden_global",    "missing_file",     "extra_file",     "gap",           "overlap",
      "out_of_bounds",       "replica_mismatch", "index_mismatch", "mixed_save",    "rank_mismatch",
      "world_size_mismatch", "duplicate_name",   "dtype_mismatch", "shape_mismatch"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace shard
