/// \file
/// Preserves the common data of a folder exactly as its file stores them, with tensors and classes outside the list.
#pragma once

#include <string>

#include "formats/dcp/item.h"
#include "libshard/catalog/originals.h"

namespace shard::dcp {

/// The largest total size of the tensors in common data that are kept in memory.
inline constexpr std::int64_t kMaxKeptStorages = std::int64_t{64} << 20;

/// Reads the storages of the tensors that are hidden in `common`, and renumbers them. If they are larger than
/// kMaxKeptStorages, damaged, or not little-endian, the entries of `originals` are dropped instead. Cost: linear.
/// \pre the values were loaded and hidden with `originals`
void keep_storages(Arena& arena, const Value& common, const OpenItem& item, Originals& originals);

/// A complete torch.save zip of an object. Opaque values are replaced by their originals (null: there are none), and
/// the zip contains the storages of only those tensors. \throws Error kUnsupported  the object contains other opaque
/// values.
std::string saved_object(const std::string& folder, const Value& value, const Originals* originals);

}  // namespace shard::dcp
