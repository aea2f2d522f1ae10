#include "formats/deepspeed/format.h"

#include "formats/deepspeed/reader.h"
#include "formats/deepspeed/respread.h"

namespace shard {

const Format kDeepSpeedFormat{
    .traits = {.name = "deepspeed", .pieces = true, .objects = true, .many_files = false},
    .suffixes = {},
    .detect = deepspeed::detect,
    .open = deepspeed::open,
    .make_writer = nullptr,
    .remake = deepspeed::respread,
    .remakes = "deepspeed",
};

}  // namespace shard
