/// \file
/// A view of a damaged source that contains only its intact tensors and objects.
#pragma once

#include <functional>
#include <memory>

#include "libshard/catalog/originals.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/repair/salvage.h"

namespace shard {

/// Of an item that is copied as it is: whether it is written.
using IsWanted = std::function<bool(const Originals::Kept& kept)>;

/// The checkpoint of `reader`, which was opened with `salvage`, with all objects read and all storages located. A chunk
/// whose storage is lost, or whose bytes the system cannot read, is left out where another of the same box is whole;
/// else its tensor is a loss and `damaged`, as are tensors of which a finding was reported. Losses are noted in the
/// catalog's metadata (lost_note.h), those that an earlier repair noted too. \throws Error kCorruption  nothing is
/// left: neither a tensor nor an object. Ownership: `salvage` may go first. Cost: reads all storages that have no
/// CRC-32, by so many threads; others were checked when they were opened.
/// Tensors that claim bytes out of proportion to their storages are lost as well. \param is_wanted  empty: all are.
std::unique_ptr<Reader> without_losses(std::unique_ptr<Reader> reader, Salvage& salvage, int threads,
                                       const IsWanted& is_wanted = {});

}  // namespace shard
