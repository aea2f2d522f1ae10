#include "formats/deepspeed/format.h"

#include "formats/deepspeed/reader.h"
#include "formats/deepspeed/writer.h"

namespace shard {

const Format kDeepSpeedFormat{
    .traits = {.name = "deepspeed", .pieces = true, .objects = true, .many_files = false},
    .suffixes = {},
    .detect = deepspeed::detect,
    .open = deepspeed::open,
    .make_writer = nullptr,
    .remake = deepspeed::repartition,
    .remakes = "deepspeed",
};

const Format kDeepSpeedUniversalFormat{
    .traits = {.name = "deepspeed-universal", .objects = true, .many_files = false},
    .suffixes = {},
    .detect = deepspeed::detect_universal,
    .open = deepspeed::open_universal,
    .make_writer = nullptr,
    .remake = deepspeed::make_universal,
    .remakes = "deepspeed",
};

}  // namespace shard
