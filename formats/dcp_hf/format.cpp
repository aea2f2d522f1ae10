#include "formats/dcp_hf/format.h"

#include <array>
#include <string_view>

namespace shard {

namespace {

/// The files are valid safetensors files, but the safetensors reader would take pieces for whole tensors.
constexpr std::array<std::string_view, 1> kSupersedes{"safetensors"};

}  // namespace

const Format kDcpHfFormat{
    .traits = {.name = "dcp-hf", .pieces = true, .single_box_items = true, .notes = true},
    .suffixes = {},
    .supersedes = kSupersedes,
    .detect = dcp_hf::detect,
    .open = dcp_hf::open,
    .make_writer = dcp_hf::make_writer,
};

}  // namespace shard
