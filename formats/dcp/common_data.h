/// \file
/// What a folder of dcp's files holds beside its items: one dict of plain data, as Megatron-core keeps its arguments in
/// `common.pt`. Its entries are objects of the checkpoint under their own names.
#pragma once

#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// Reads the torch.save file `name` in `folder`, which becomes the catalog's last file. Classes outside the list and
/// tensors are opaque. \returns the dict; in the catalog's arena.
/// \throws Error kCorruption, kUnsupported  naming the file: as open_saved_file; it holds no dict.
Value* read_common_file(const SourceStore& store, const std::string& folder, const std::string& name, Catalog& catalog,
                        Findings& findings, Originals& originals);

/// The same of a loaded item: a list of one dict. \throws Error kCorruption  it is something else.
Value* common_of_item(Arena& arena, const Value& loaded, Originals& originals);

/// Appends the leaves of the dict to `objects`, and its entries to those of the checkpoint's tree. Namespaces are dicts
/// of their attributes. Cost: linear in leaves.
void list_common(Arena& arena, Value& common, std::vector<Object>& objects, std::vector<TreeEntry>& entries);

}  // namespace shard::dcp
