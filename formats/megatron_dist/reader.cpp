#include "formats/dcp/reader.h"

#include <algorithm>
#include <array>

#include "formats/foreign.h"
#include "formats/megatron_dist/format.h"
#include "formats/megatron_dist/save_folder.h"
#include "libshard/core/error.h"

namespace shard::megatron_dist {

namespace {

/// True for a flat buffer of a data-parallel group. It contains uninitialised memory between its parameters, and only
/// the training job knows their order.
bool is_bucket(std::string_view name) {
  return name.find("optimizer.distributed.dp_group_idx_") != std::string_view::npos &&
         name.find(".bucket_idx_") != std::string_view::npos;
}

constexpr dcp::FolderForm kForm{
    .format = "megatron-dist",
    .keeps_objects_whole = true,
    .common_file = kCommonFile,
    .common_item = kCommonItem,
    .sets_short_apart = true,
    .names_megatron = true,
    .is_unreadable = is_bucket,
    .why_unreadable = "are flat buffers of the optimizer (dp_reshardable), whose order the checkpoint does not record"};

/// The folder is also valid for dcp, which ignores the files beside the items.
constexpr std::array<std::string_view, 1> kSupersedes{"dcp"};
constexpr std::array kWriteOptions{kCoreVersion};

/// A folder with the common data of a checkpoint, whose metadata.json is missing.
std::optional<Error> explain_common(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return std::nullopt;
  if (!std::ranges::binary_search(store.list(path), kCommonFile)) return std::nullopt;
  return unreadable_kind("a Megatron-Core dist_checkpointing folder", path);
}

}  // namespace

bool detect(const Source& source) {
  return source.paths.size() == 1 && !find_checkpoint(*source.store, source.paths.front()).empty();
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  const std::string folder =
      source.paths.size() == 1 ? find_checkpoint(*source.store, source.paths.front()) : std::string();
  if (folder.empty()) {
    throw Error(ErrorCode::kNotFound, "this is not a checkpoint of Megatron-Core: no metadata.json names torch_dist")
        .in_file(source.paths.front())
        .of_kind(FindingKind::kMissingFile)
        .because("Megatron-Core writes metadata.json last")
        .hint("name the folder of one iteration, or the one with latest_checkpointed_iteration.txt");
  }
  check_versions(*source.store, folder);
  dcp::FolderForm form = kForm;
  form.needs_common = names_common(*source.store, folder);
  form.iteration = iteration_in_name(folder);
  return dcp::open_folder(*source.store, folder, options, form);
}

}  // namespace shard::megatron_dist

const shard::Format shard::kMegatronDistFormat{
    .traits = {.name = "megatron-dist", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .supersedes = megatron_dist::kSupersedes,
    .write_options = megatron_dist::kWriteOptions,
    .detect = megatron_dist::detect,
    .open = megatron_dist::open,
    .make_writer = megatron_dist::make_writer,
    .explain_refusal = megatron_dist::explain_common,
};
