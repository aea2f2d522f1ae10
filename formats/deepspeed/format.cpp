#include "formats/deepspeed/format.h"

#include "formats/deepspeed/reader.h"

namespace shard {

const Format kDeepSpeedFormat{
    .traits = {.name = "deepspeed"},
    .suffixes = {},
    .detect = deepspeed::detect,
    .open = deepspeed::open,
    .make_writer = nullptr,
};

}  // namespace shard
