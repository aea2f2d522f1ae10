#include "formats/megatron_dist/format.h"

#include "formats/megatron_dist/reader.h"
#include "formats/megatron_dist/writer.h"

namespace shard {

const Format kMegatronDistFormat{
    .traits = {.name = "megatron-dist", .pieces = true, .one_box_per_item = true, .objects = true},
    .suffixes = {},
    .detect = megatron_dist::detect,
    .open = megatron_dist::open,
    .make_writer = megatron_dist::make_writer,
};

}  // namespace shard
