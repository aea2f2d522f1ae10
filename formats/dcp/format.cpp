#include "formats/dcp/format.h"

#include "formats/dcp/reader.h"
#include "formats/dcp/source_files.h"
#include "formats/dcp/writer.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// The error for one rank's file of a DCP checkpoint: the folder is the checkpoint.
std::optional<Error> refuse_item_file(const SourceStore& store, const std::string& path) {
  const std::string folder = parent_path(path);
  const bool is_item_file = dcp::file_numbers(base_name(path)).rank >= 0;
  if (!is_item_file && base_name(path) != dcp::kMetadataName) return std::nullopt;
  if (!store.is_file(path)) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument, "this is one file of a DCP checkpoint, which is read as a folder")
      .in_file(path)
      .expected("the folder with .metadata and all .distcp files")
      .suggest(Remedy::kReadFolder, folder);
}

}  // namespace

const Format kDcpFormat{
    .traits = {.name = "dcp", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .detect = dcp::detect,
    .open = dcp::open,
    .make_writer = dcp::make_writer,
    .refuse_part = refuse_item_file,
};

}  // namespace shard
