#include "shardtorch/errors.h"

#include <c10/core/WrapDimMinimal.h>

#include "libshard/core/error_text.h"

namespace shard {

std::string message_of(const std::exception& error) {
  if (const auto* const torchs = dynamic_cast<const c10::Error*>(&error)) return torchs->what_without_backtrace();
  if (const auto* const own = dynamic_cast<const Error*>(&error)) return describe(*own);
  return error.what();
}

std::optional<ErrorCode> code_of(const std::exception& error) {
  if (const auto* const own = dynamic_cast<const Error*>(&error)) return own->code();
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return ErrorCode::kUnsupported;
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return ErrorCode::kPeer;
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return ErrorCode::kInvalidArgument;
  return std::nullopt;
}

std::int64_t wrapped_dim(std::int64_t dim, std::int64_t dims, bool wrap_scalar) {
  try {
    return c10::maybe_wrap_dim(dim, dims, wrap_scalar);
  } catch (const c10::IndexError& error) {
    throw c10::IndexError(error.msg());
  }
}

}  // namespace shard
