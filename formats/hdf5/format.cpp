#include "formats/hdf5/format.h"

#include "formats/hdf5/reader.h"
#include "formats/hdf5/writer.h"
#include "formats/hdf5_source.h"
#include "formats/plugins.h"

namespace shard {

const Format kHdf5Format{
    .traits = {.name = "hdf5",
               .pieces = true,
               .one_box_per_item = true,
               .objects = true,
               .aliases = true,
               .notes = true,
               .prefers_whole = true},
    .suffixes = kHdf5Suffixes,
    .detect = is_hdf5_source,
    .open = hdf5::open,
    .make_writer = hdf5::make_writer,
};

}  // namespace shard

/// The plug-in's entry; its name is kFormatPluginEntry.
extern "C" void shard_formats_2(shard::AddFormat add) { add(shard::kHdf5Format); }
