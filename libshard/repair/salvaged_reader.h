/// \file
/// A view of a damaged source that contains only its intact tensors and objects.
#pragma once

#include <functional>
#include <memory>

#include "libshard/catalog/originals.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/repair/salvage.h"

namespace shard {

/// Decides whether an item that is copied unchanged is written, and by its name and kind, whether a loss is reported.
using IsWanted = std::function<bool(const Originals::Kept& kept)>;

/// Returns the intact part of `reader`'s checkpoint. \pre `reader` was opened with `salvage`, all its objects are read
/// and all its storages are located.
///
/// A chunk is dropped if its storage is lost or the system cannot read its bytes, and a different chunk with the same
/// box is intact. Without such a replica, its tensor is a loss and `damaged`. Tensors with a reported finding are
/// losses too, and so are tensors that claim bytes out of proportion to their storages. The catalog's metadata receives
/// a note of all losses (lost_note.h), including those that an earlier repair noted.
/// \param is_wanted  empty: all items are wanted. Losses of unwanted tensors and objects are dropped from `salvage`.
/// \throws Error kCorruption  neither a tensor nor an object is left.
/// Ownership: `salvage` may be destroyed first. Cost: `threads` threads read all storages that have no CRC-32. The
/// others were checked when they were opened.
std::unique_ptr<Reader> without_losses(std::unique_ptr<Reader> reader, Salvage& salvage, int threads,
                                       const IsWanted& is_wanted = {});

}  // namespace shard
