/// \file
/// CRC-32s of storages, from the ranks that made them to the owners of the storages' files.
#pragma once

#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/exec/checksums.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Sends each run to `owners[storages[run.storage].file]`. Collective.
/// \returns what the other ranks sent here. \throws Error kPeer
/// Cost: an exchange of 8 bytes with each rank, then the runs themselves.
std::vector<CrcRun> send_to_owners(Group& group, std::span<const CrcRun> runs, std::span<const Storage> storages,
                                   std::span<const int> owners);

}  // namespace shard
