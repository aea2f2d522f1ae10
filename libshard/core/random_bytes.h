/// \file Unpredictable random bytes.
#pragma once

#include <cstddef>
#include <span>

namespace shard {

/// Fills `bytes` from the kernel's generator. \pre at most 256 bytes
/// \throws Error kResource  the kernel returns none.
void draw_random(std::span<std::byte> bytes);

}  // namespace shard
