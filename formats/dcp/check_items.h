/// \file
/// Checks all bytes of a dcp folder's files: the zip of every item, the bytes between items, and whether a file
/// contains the items that `.metadata` names.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "formats/dcp/metadata.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/core/arena.h"
#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// Checks a file that contains `items`, given by offset. Zips that no item names are checked and reported as a warning:
/// torch leaves them behind if several ranks wrote one tensor. Other bytes outside items are a finding.
void check_item_file(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                     ContainerReport& report);

/// Checks the directory, the headers and all checksums of one item's zip. \returns the first problem, or nothing.
/// \pre the item is not compressed with zstd. Cost: reads all of it.
std::optional<Error> fault_of_item(const std::shared_ptr<const RandomReader>& file, const Item& item);

/// Checks `.metadata` or a rank's metadata: no bytes follow its pickle. Lists its globals.
void check_metadata_file(const RandomReader& file, ContainerReport& report);

// Items do not record which tensor they belong to. A file that was replaced by a different one (of another rank or
// another save) may contain items with the expected dtypes and sizes at some offsets, but with different elements. Such
// a file also has item borders at unexpected offsets, which mere damage cannot produce.

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
