/// \file
/// Describes a dataset as plain data. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/channel.h"
#include "formats/hdf5/parser/entry_arena.h"

namespace shard::hdf5 {

struct WholeFile {
  Channel& channel;
  FileFacts facts{};
};

/// Fills all fields of a dataset in `entry` except its names and attributes.
/// \throws LibraryError  external storage, filters that cannot be undone; see read_mappings
void describe_dataset(const WholeFile& file, hid_t dataset, Entry& entry, EntryArena& arena);

}  // namespace shard::hdf5
