#include "formats/safetensors/format.h"

#include <array>

#include "formats/safetensors/reader.h"
#include "formats/safetensors/source_files.h"
#include "formats/safetensors/writer.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 1> kSuffixes{".safetensors"};

}  // namespace

const Format kSafetensorsFormat{
    .traits = {.name = "safetensors", .notes = true},
    .suffixes = kSuffixes,
    .detect = safetensors::is_safetensors,
    .open = safetensors::open_safetensors,
    .make_writer = safetensors::make_safetensors_writer,
};

}  // namespace shard
