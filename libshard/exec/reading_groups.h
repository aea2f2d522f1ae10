/// \file Assigns tensors to reading threads, in reading order. digest and diff use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Groups of tensors that one thread reads one after another. Tensors that begin in the same compressed storage form
/// one group in storage order, so that the storage is decoded front to back. Every other tensor is a separate group.
/// \returns positions in `tensors`. \pre they are located
std::vector<std::vector<std::size_t>> reading_groups(const Catalog& catalog, std::span<const std::uint32_t> tensors);

}  // namespace shard
