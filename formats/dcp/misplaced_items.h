/// \file
/// Checks whether the items of a `.distcp` file are those that `.metadata` names.
///
/// Items do not record which tensor they belong to. A file that was replaced by a different one (of another rank or
/// another save) may contain items with the expected dtypes and sizes at some offsets, but with different elements.
/// Such a file also has item borders at unexpected offsets, which damage alone cannot produce.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "formats/dcp/metadata.h"
#include "libshard/core/arena.h"
#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// The error for an item that is not the one that `.metadata` names. No other item of the file can be trusted then.
Error misplaced(std::string what);

/// Evidence that `items` are not those of the file: a whole zip starts at an item's offset but ends elsewhere; a zip
/// starts at the end of the last item; or the file ends between two items. Empty if there is no such evidence, whether
/// the file is damaged or not.
/// \pre `items` are all items of the file, by offset, with their lengths. The scan is charged to the budget of `arena`.
/// Cost: opens each item's zip. If one cannot be opened, or the file does not end with the last item, all bytes are
/// read twice.
std::optional<Error> misplaced_items(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                                     Arena& arena);

}  // namespace shard::dcp
