#include "formats/safetensors/format.h"

#include <array>

#include "formats/safetensors/reader.h"
#include "formats/safetensors/writer.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 1> kSuffixes{".safetensors"};

}  // namespace

const Format kSafetensorsFormat{
    .traits = {.name = "safetensors", .notes = true},
    .suffixes = kSuffixes,
    .detect = safetensors::detect,
    .open = safetensors::open,
    .make_writer = safetensors::make_writer,
};

}  // namespace shard
