#include "formats/hdf5/format.h"

#include <fmt/format.h>

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5_source.h"
#include "formats/plugins.h"

namespace shard {

const Format kHdf5Format{
    .traits = {.name = "hdf5",
               .pieces = true,
               .single_box_items = true,
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
extern "C" void shard_formats_3(shard::AddFormat add) { add(shard::kHdf5Format); }

/// kLibraryVersionEntry.
extern "C" const char* shard_library_version() {
  static const std::string kVersion = [] {
    const auto lock = shard::hdf5::library_lock();
    unsigned major = 0, minor = 0, release = 0;
    shard::hdf5::checked(H5get_libversion(&major, &minor, &release));
    return fmt::format("{}.{}.{}", major, minor, release);
  }();
  return kVersion.c_str();
}
