/// \file
/// Which tensors one thread reads, and in which order: for digest and diff.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Tensors that one thread is to read one after another: those that begin in one compressed storage, as they lie in it,
/// so that it is decoded front to back; every other tensor alone. \returns positions in `tensors`. \pre they are
/// located
std::vector<std::vector<std::size_t>> reading_groups(const Catalog& catalog, std::span<const std::uint32_t> tensors);

}  // namespace shard
