/// \file
/// Whether the items of a `.distcp` file are those that `.metadata` names.
///
/// Items do not say what they belong to. A file in whose place another one lies (of another rank, of another save) may
/// hold items of the dtypes and sizes that are expected at some places, with other elements. Its items have other
/// borders elsewhere, which damage does not make.
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

/// That an item of a file is not the one that `.metadata` names, so that no other item of it can be taken for its own.
Error misplaced(std::string what);

/// What shows that `items` are not those of the file; nothing where that may be, damaged or not: a whole zip begins
/// where an item begins and ends elsewhere, one begins where the last item ends, or the file ends between two items.
/// \pre `items` are all of the file, by offset, with their lengths. The budget of `arena` pays for the scan.
/// Cost: opens each item's zip. Where one cannot be opened, or the file does not end with the last, all bytes are read
/// twice.
std::optional<Error> misplaced_items(const std::shared_ptr<const RandomReader>& file, std::span<const Item> items,
                                     Arena& arena);

}  // namespace shard::dcp
