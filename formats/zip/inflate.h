/// \file
/// Inflates one deflated zip record (metadata; tensors' bytes are never compressed by torch).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace shard::zip {

/// The inflated bytes of `data`, exactly `bytes` of them. Memory grows with what really comes out, never by `bytes`.
/// \throws Error kCorruption (kind bad_header)  not a deflate stream, or more or fewer bytes come out.
std::vector<std::byte> inflate(std::span<const std::byte> data, std::int64_t bytes, std::string_view record,
                               std::string_view file);

}  // namespace shard::zip
