/// \file
/// Finds `.distcp` files of which one is a copy of another, in the place of its own.
///
/// Ranks' files of one layout have items of the same dtypes and sizes at the same places, so that nothing but the
/// elements tells them apart.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "formats/dcp/item_store.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"

namespace shard::dcp {

/// Pairs of files of one size that should hold different boxes of these tensors and do not: what lies in one of them,
/// of tensors in several boxes, lies in the other too, at the same places and with the same CRC-32s. Not those of which
/// each box is one value over and over (as in a fresh optimizer). Each pair by file.
/// \pre what can be located of the tensors is
/// Cost: n log n in boxes, and a small read for each pair.
std::vector<std::pair<std::uint32_t, std::uint32_t>> copied_files(const Catalog& catalog, const ItemStore& items,
                                                                  std::span<const std::uint32_t> tensors);

/// What is said of such a pair.
Error copied_file(const Catalog& catalog, const std::pair<std::uint32_t, std::uint32_t>& pair);

}  // namespace shard::dcp
