/// \file
/// Warnings about content that a writing verb does not convert.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "apps/shardctl/source/source.h"
#include "formats/export/model_folder.h"
#include "libshard/catalog/targets/target.h"

namespace shard::app {

/// Warnings about aliases, attributes and metadata texts that the target cannot store, about quantized modules that are
/// selected in part, and about other files in the source's folder that no other warning mentions and that are not among
/// the `carried` ones.
std::vector<std::string> loss_warnings(const Session& session, const SelectionOptions& options,
                                       const OpenSource& source, const FormatTraits& traits,
                                       const std::vector<AddedFile>& carried);

/// The visible entries of the source's folder that neither are in `read`, paths relative to that folder, nor contain
/// one of these files. Sorted. Skips indexes and other files that only describe the checkpoint, and files without a
/// byte, which torch writes for ranks without data. Empty if the source is not a folder, or is a folder above the
/// checkpoint's. Of several folders (average), those of the first.
std::vector<std::string> names_beside(const Session& session, const OpenSource& source,
                                      const std::set<std::string>& read);

}  // namespace shard::app
