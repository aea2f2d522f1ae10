#include "formats/torch_ranks/format.h"

#include "formats/torch_ranks/reader.h"
#include "formats/torch_ranks/writer.h"

namespace shard {

const Format kTorchRanksFormat{
    .traits = torch_ranks::traits_for({}),
    .suffixes = {},
    .detect = torch_ranks::detect,
    .open = torch_ranks::open,
    .make_writer = torch_ranks::make_writer,
    .traits_for = torch_ranks::traits_for,
};

}  // namespace shard
