#include "formats/hdf5/format.h"

#include <array>

#include "formats/hdf5/reader.h"
#include "formats/hdf5/writer.h"
#include "formats/hdf5_source.h"
#include "formats/plugins.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 2> kSuffixes{".h5", ".hdf5"};

}  // namespace

const Format kHdf5Format{
    .traits = {.name = "hdf5",
               .pieces = true,
               .one_box_per_item = true,
               .objects = true,
               .aliases = true,
               .notes = true,
               .prefers_whole = true},
    .suffixes = kSuffixes,
    .detect = is_hdf5_source,
    .open = hdf5::open,
    .make_writer = hdf5::make_writer,
};

}  // namespace shard

/// The plug-in's entry; its name is kFormatPluginEntry.
extern "C" void shard_formats_2(shard::AddFormat add) { add(shard::kHdf5Format); }
