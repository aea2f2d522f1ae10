/// \file
/// The faults of an index and its files, and of counted parts without an index.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::hf_index {

/// The error for parts of the index's own checkpoint that it does not list, or nothing. `names` are the files of the
/// folder, `listed` those of the index, sorted.
std::optional<Error> lacks_parts(const std::string& index, const std::vector<std::string>& names,
                                 const std::vector<std::string>& listed, std::string_view suffix);
/// An index that lists missing files although its folder contains a complete checkpoint.
struct StaleIndex {
  Error error;                  ///< Names the folder, instead of which the complete set may be read.
  WholeSet whole;               ///< Not empty.
  bool is_all_missing = false;  ///< None of the files that the index lists exists.
};

/// Returns the fault if the index is stale in this sense. `names` and `listed` are as for lacks_parts.
std::optional<StaleIndex> find_stale(const SourceStore& store, const std::string& folder, const std::string& index,
                                     const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                     std::string_view suffix);
/// The fault of files in `folder` without an index, or nothing. Parts of two counts under one name (-of-00003 and
/// -of-00005) are two checkpoints. Otherwise a part may be missing.
std::optional<Error> counted_fault(const std::string& folder, const std::vector<std::string>& names,
                                   std::string_view suffix);
/// A finding for files with base names `names` that were named one by one: other parts exist and are not read. It is
/// not a fault, because a user may select some parts. \returns nothing if all parts are named, or their names do not
/// count them
std::optional<Error> unnamed_parts(const std::vector<std::string>& names, std::string_view suffix);

/// The finding for a file in the folder that the index does not list.
Error extra_file(const std::string& name);
/// The finding for a tensor in a listed file that the index does not list.
Error unlisted_tensor(std::string_view name, const std::string& index);
/// The finding for a tensor in a different file from the one in the index.
Error misplaced_tensor(std::string_view name, const std::string& index);
/// The finding for a tensor that is missing from the file that the index lists for it.
Error absent_tensor(std::string_view name, std::string_view file, const std::string& index);

}  // namespace shard::hf_index
