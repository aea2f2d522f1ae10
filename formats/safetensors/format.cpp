#include "formats/safetensors/format.h"

#include <array>

#include "libshard/core/suffixes.h"
#include "libshard/map/documents/document.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 1> kSuffixes{kSafetensorsSuffix};

}  // namespace

const Format kSafetensorsFormat{
    .traits = {.name = "safetensors", .notes = true},
    .suffixes = kSuffixes,
    .loader_suffix = kSafetensorsSuffix,
    .map_container = MapContainer::kSafetensors,
    .detect = safetensors::detect,
    .open = safetensors::open,
    .make_writer = safetensors::make_writer,
};

}  // namespace shard
