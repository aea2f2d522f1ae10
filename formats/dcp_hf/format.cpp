#include "formats/dcp_hf/format.h"

#include "formats/dcp_hf/reader.h"
#include "formats/dcp_hf/writer.h"

namespace shard {

const Format kDcpHfFormat{
    .traits = {.name = "dcp-hf", .pieces = true, .one_box_per_item = true, .notes = true},
    .suffixes = {},
    .detect = dcp_hf::detect,
    .open = dcp_hf::open,
    .make_writer = dcp_hf::make_writer,
};

}  // namespace shard
