/// \file
/// Checks all bytes of a dcp folder's files: the zip of every item, and the bytes between items.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "formats/dcp/metadata.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/core/arena.h"

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

}  // namespace shard::dcp
