/// \file
/// Faults of an index and its files, and of parts that count themselves and have no index.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::hf_index {

/// What an index does not name of the parts of its own checkpoint, or nothing. `names` are the files of the folder,
/// `listed` those of the index, sorted.
std::optional<Error> lacks_parts(const std::string& index, const std::vector<std::string>& names,
                                 const std::vector<std::string>& listed, std::string_view suffix);
/// An index that names files which are missing, though its folder holds a whole checkpoint.
struct StaleIndex {
  Error error;                  ///< Names the folder, in whose place the set may be read.
  WholeSet whole;               ///< Not empty.
  bool is_all_missing = false;  ///< None of the files exists that the index names.
};

/// Whether the index is such a one. `names` and `listed` are as for lacks_parts.
std::optional<StaleIndex> find_stale(const SourceStore& store, const std::string& folder, const std::string& index,
                                     const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                     std::string_view suffix);
/// For files of `folder` without an index: parts of two counts under one name (-of-00003 and -of-00005) are two
/// checkpoints. Otherwise a part may be missing. \returns nothing if there is no such fault
std::optional<Error> counted_fault(const std::string& folder, const std::vector<std::string>& names,
                                   std::string_view suffix);
/// A finding for files that were named one by one, with base names `names`: other parts are not read. Not a fault, as
/// one may ask for some of them. \returns nothing if they are all, or do not count themselves
std::optional<Error> unnamed_parts(const std::vector<std::string>& names, std::string_view suffix);

/// A file in the folder that the index does not name.
Error extra_file(const std::string& name);
/// A tensor that a file of the index holds and the index does not list.
Error unlisted_tensor(std::string_view name, const std::string& index);
/// A tensor in a file other than the one that the index says.
Error misplaced_tensor(std::string_view name, const std::string& index);
/// A tensor that the index places in a file without it.
Error absent_tensor(std::string_view name, std::string_view file, const std::string& index);

}  // namespace shard::hf_index
