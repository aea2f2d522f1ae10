#include "formats/megatron/format.h"

namespace shard {

const Format kMegatronFormat{
    .traits = {.name = "megatron"},
    .suffixes = {},
    .detect = megatron::detect,
    .open = megatron::open,
    .make_writer = nullptr,
};

}  // namespace shard
