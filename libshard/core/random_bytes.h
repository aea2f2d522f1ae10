/// \file
/// Random bytes that nobody can foresee.
#pragma once

#include <cstddef>
#include <span>

namespace shard {

/// Fills `bytes` from the kernel's generator. \pre at most 256 bytes
/// \throws Error kResource  the kernel gives none.
void draw_random(std::span<std::byte> bytes);

}  // namespace shard
