/// \file
/// The files of a dcp folder: which metadata there is, which items' files it names, what sizes they have.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/format.h"

namespace shard::dcp {

struct MetadataFile {
  std::string name;
  int rank = -1;  ///< R in `__R.metadata`.
};

/// `.metadata`, or where it is missing `__0.metadata`, `__1.metadata`, ... by rank, all of them. That is torch's order
/// too; a line in `warnings` says which were left aside.
/// \throws Error kNotFound    there is none; a rank's is missing: a number up to the highest, also of `__R_I.distcp`.
/// \throws Error kCorruption  one rank has two.
std::vector<MetadataFile> find_metadata(const SourceStore& store, const std::string& folder, Findings& findings,
                                        std::vector<std::string>& warnings);

/// For repair: metadata to try, the best first.
struct MetadataChoice {
  std::string shown;
  std::vector<MetadataFile> files;
};

/// `.metadata`; `.metadata.tmp`, which torch renames at the end of a save; that of ranks, of which those that lack are
/// reported where there is no other. Those that are there.
/// \throws Error kCorruption  one rank has two.
std::vector<MetadataChoice> metadata_choices(const SourceStore& store, const std::string& folder, Findings& findings);

/// Adds the files that `metadata` names to the catalog, by rank and number, and replaces the items' file numbers by the
/// catalog's. Sets world_size, and checks it against options.ranks_expected. Files that nothing lies in are a warning.
/// \returns which of the catalog's files are there.
/// \throws Error kNotFound (kind missing_file)  a file is missing, or ranks are; kCorruption  there are too many ranks.
std::vector<bool> add_files(const SourceStore& store, const std::string& folder, Metadata& metadata,
                            const OpenOptions& options, Catalog& catalog);

/// Sets lengths that the metadata leaves out (to the next item or the end); checks that items lie in their files and
/// apart from one another, as far as these `are_there`. `open` is asked only where they do not. Cost: n log n in items.
/// \throws Error kCorruption  of kind truncated or overlap.
void check_items(Metadata& metadata, const Catalog& catalog, const std::vector<bool>& are_there, Findings& findings,
                 const std::function<std::shared_ptr<const RandomReader>(std::uint32_t file)>& open);

}  // namespace shard::dcp
