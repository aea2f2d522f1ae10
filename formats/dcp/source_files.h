/// \file
/// The files of a dcp folder: their names, its metadata, the files of the items, and their sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/format.h"

namespace shard::dcp {

inline constexpr std::string_view kMetadataName = ".metadata";

/// The rank and number in `__RANK_NUMBER.distcp`; rank -1 for other names.
struct FileNumbers {
  int rank = -1;
  std::int64_t number = 0;
};
FileNumbers file_numbers(std::string_view name);

/// The rank in `__RANK.metadata`, which each rank writes with use_collectives=False; -1 for other names.
int metadata_rank(std::string_view name);

struct MetadataFile {
  std::string name;
  int rank = -1;  ///< R in `__R.metadata`.
};

/// Finds `.metadata`, or if it is missing all of `__0.metadata`, `__1.metadata`, ... by rank. torch uses the same
/// order. A line in `warnings` names the metadata that were ignored.
/// \throws Error kNotFound    the metadata is missing, or that of a rank. Ranks count up to the highest number in the
///   names, which may also be that of a `__R_I.distcp`.
/// \throws Error kCorruption  a rank has two files.
std::vector<MetadataFile> find_metadata(const SourceStore& store, const std::string& folder, Findings& findings,
                                        std::vector<std::string>& warnings);

/// For repair: a choice of metadata, the best first.
struct MetadataChoice {
  std::string shown;
  std::vector<MetadataFile> files;
};

/// The existing choices among: `.metadata`; `.metadata.tmp`, which torch renames at the end of a save; the metadata of
/// ranks. Missing metadata of ranks are reported if there is no other choice.
/// \throws Error kCorruption  a rank has two files.
std::vector<MetadataChoice> metadata_choices(const SourceStore& store, const std::string& folder, Findings& findings);

/// Adds the files that `metadata` names to the catalog, by rank and number, and replaces the items' file numbers by the
/// catalog's. Sets world_size, and checks it against options.ranks_expected. Unused files are a warning.
/// \returns for each of the catalog's files whether it exists.
/// \throws Error kNotFound (kind missing_file)  a file or a rank is missing; kCorruption  there are too many ranks.
std::vector<bool> add_files(const SourceStore& store, const std::string& folder, Metadata& metadata,
                            const OpenOptions& options, Catalog& catalog);

/// Sets lengths that the metadata omits (to the next item or the end of the file). Checks that items are inside their
/// files and do not overlap, for files with `are_there`. Calls `open` only if a check fails. Cost: n log n in items.
/// \throws Error kCorruption  of kind truncated or overlap.
void check_items(Metadata& metadata, const Catalog& catalog, const std::vector<bool>& are_there, Findings& findings,
                 const std::function<std::shared_ptr<const RandomReader>(std::uint32_t file)>& open);

}  // namespace shard::dcp
