#include "formats/megatron_dist/format.h"

#include <array>
#include <string_view>

namespace shard {

namespace {

/// The folder is also valid for dcp, which ignores the files beside the items.
constexpr std::array<std::string_view, 1> kSupersedes{"dcp"};
constexpr std::array kWriteOptions{megatron_dist::kCoreVersion};

}  // namespace

const Format kMegatronDistFormat{
    .traits = {.name = "megatron-dist", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .supersedes = kSupersedes,
    .write_options = kWriteOptions,
    .detect = megatron_dist::detect,
    .open = megatron_dist::open,
    .make_writer = megatron_dist::make_writer,
};

}  // namespace shard
