#include "formats/megatron_dist/format.h"

#include <algorithm>

#include "formats/foreign.h"
#include "formats/megatron_dist/save_folder.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

/// The folder is also valid for dcp, which ignores the files beside the items.
constexpr std::array<std::string_view, 1> kSupersedes{"dcp"};
constexpr std::array kWriteOptions{megatron_dist::kCoreVersion};

/// A folder with the common data of a checkpoint, whose metadata.json is missing.
std::optional<Error> explain_common(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return std::nullopt;
  if (!std::ranges::binary_search(store.list(path), megatron_dist::kCommonFile)) return std::nullopt;
  return unreadable_kind("a Megatron-core dist_checkpointing folder", path);
}

}  // namespace

const Format kMegatronDistFormat{
    .traits = {.name = "megatron-dist", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .supersedes = kSupersedes,
    .write_options = kWriteOptions,
    .detect = megatron_dist::detect,
    .open = megatron_dist::open,
    .make_writer = megatron_dist::make_writer,
    .explain_refusal = explain_common,
};

}  // namespace shard
