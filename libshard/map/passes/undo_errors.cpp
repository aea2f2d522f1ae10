#include "libshard/map/passes/undo_errors.h"

#include <fmt/format.h>

#include "libshard/map/documents/wrong.h"

namespace shard {

Error held_twice(std::string_view tensor, std::int64_t rank) {
  const std::string holder = rank < 0 ? "the checkpoint" : fmt::format("rank {}", rank);
  return wrong(fmt::format("cannot map '{}': {} holds it twice", tensor, holder)).of_tensor(tensor);
}

Error part_missing(std::string_view tensor, std::int64_t rank) {
  return Error(ErrorCode::kNotFound, fmt::format("rank {} lacks its part of '{}'", rank, tensor))
      .of_tensor(tensor)
      .of_rank(static_cast<int>(rank));
}

Error dtypes_differ(std::string_view tensor, DType expected, DType found) {
  return Error(ErrorCode::kCorruption, fmt::format("ranks hold '{}' as different dtypes", tensor))
      .of_tensor(tensor)
      .of_kind(FindingKind::kDtypeMismatch)
      .expected(dtype_name(expected))
      .found(dtype_name(found));
}

}  // namespace shard
