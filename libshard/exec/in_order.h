/// \file
/// A tensor's elements in row-major order, in a temporary file. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <memory>

#include "libshard/exec/execute.h"

namespace shard {

/// The file may take so many bytes, and so many times the bytes of the source file that it is made of.
inline constexpr std::int64_t kInOrderFreely = std::int64_t{1} << 30, kInOrderTimes = 16;

/// Copies a tensor's elements, as a gather does: every source byte is read once, a stream from its begin to its end.
/// \pre `options` ask for no checksums
/// \throws Error kResource  the file cannot be written, or would be larger than it may be.
std::unique_ptr<RandomReader> copy_in_order(const Catalog& catalog, const Reader& reader, std::uint32_t tensor,
                                            const ExecuteOptions& options);

}  // namespace shard
