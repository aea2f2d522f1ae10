#include "formats/dcp/format.h"

#include "formats/dcp/reader.h"
#include "formats/dcp/writer.h"

namespace shard {

const Format kDcpFormat{
    .traits = {.name = "dcp", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .detect = dcp::detect,
    .open = dcp::open,
    .make_writer = dcp::make_writer,
};

}  // namespace shard
