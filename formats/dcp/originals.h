/// \file
/// The common data of a folder as its file has them: with classes outside the list and tensors.
#pragma once

#include <string>

#include "formats/dcp/item.h"
#include "libshard/catalog/originals.h"

namespace shard::dcp {

/// What all tensors in common data may take of memory, together.
inline constexpr std::int64_t kMaxKeptStorages = std::int64_t{64} << 20;

/// Reads the storages of the tensors that are hidden in `common`, and numbers them anew. Where that cannot be (they
/// are larger than kMaxKeptStorages, damaged, or not little-endian), the originals forget what values stand for. Cost:
/// linear. \pre the values were loaded and hidden with `originals`
void keep_storages(Arena& arena, const Value& common, const OpenItem& item, Originals& originals);

/// A complete torch.save zip of an object, in which opaque values are what they stand for by `originals` (null: there
/// are none), with the storages of those tensors alone. \throws Error kUnsupported  it holds other opaque values.
std::string saved_object(const std::string& folder, const Value& value, const Originals* originals);

}  // namespace shard::dcp
