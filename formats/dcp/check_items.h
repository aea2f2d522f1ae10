/// \file
/// Checks all bytes of a dcp folder's files: every item's zip, and what lies between items.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "formats/dcp/metadata.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/core/arena.h"

namespace shard::dcp {

/// Checks a file of items, which are `items`, by offset. Zips that no item names, as torch leaves them where ranks
/// wrote one tensor, are checked too and warned of; other bytes outside items are reported.
void check_item_file(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                     ContainerReport& report);

/// The first thing that is wrong with the zip of one item, or nothing: its directory, headers and all checksums.
/// \pre not of zstd. Cost: reads all of it.
std::optional<Error> fault_of_item(const std::shared_ptr<const RandomReader>& file, const Item& item);

/// Checks `.metadata` or one rank's: nothing follows its pickle. Lists its globals.
void check_metadata_file(const RandomReader& file, ContainerReport& report);

}  // namespace shard::dcp
