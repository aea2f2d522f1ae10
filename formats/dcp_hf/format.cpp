#include "formats/dcp_hf/format.h"

#include "formats/dcp_hf/reader.h"
#include "formats/dcp_hf/source_files.h"
#include "formats/dcp_hf/writer.h"

namespace shard {

const Format kDcpHfFormat{
    .traits = {.name = "dcp-hf", .pieces = true, .one_box_per_item = true, .notes = true},
    .suffixes = {},
    .detect = dcp_hf::is_dcp_hf,
    .open = dcp_hf::open_dcp_hf,
    .make_writer = dcp_hf::make_dcp_hf_writer,
};

}  // namespace shard
