/// \file
/// Preserves attributes and datasets of strings as their file stores them. A copy from HDF5 to HDF5 thus keeps types,
/// lengths and shapes, which objects lack. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/hdf5/described.h"
#include "formats/hdf5/values.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"

namespace shard::hdf5 {

/// Originals::format of HDF5 sources.
inline constexpr std::string_view kOriginalsFormat = "hdf5";

/// The kind of an object in its file.
enum class KeptAs : std::uint8_t {
  kGroupAttribute,
  kDatasetAttribute,
  kDataset,
  kList,  ///< Not from HDF5: the list of a different format. It becomes an attribute, see writer.cpp.
};

/// The content for Originals::stored, or null for a type that is not written. Ownership: in the arena.
/// \param name     the attribute's name, decoded
/// \param objects  the number of objects built from it, each `depth` indexes below its path
const StoredObject* keep_content(Arena& arena, KeptAs as, std::string_view name, const Content& content,
                                 std::uint32_t objects, std::uint32_t depth);

/// A content that is written unchanged.
struct KeptContent {
  KeptAs as{};
  std::string attribute;        ///< The name of an attribute.
  std::string name;             ///< The name of the object, or of all objects built from it, without their indexes.
  std::vector<PathPart> parts;  ///< The same name as a path; empty if it is `name`.
  OutgoingContent content;

  Path path() const { return Path(parts); }
};
struct KeptContents {
  std::vector<KeptContent> contents{};
  std::vector<bool> is_kept{};  ///< By object: whether one of the contents includes it.
};

/// The contents whose objects are all in `target`, unchanged and under one path.
/// \throws Error kCorruption  a malformed StoredObject
KeptContents kept_contents(const Catalog& target);

}  // namespace shard::hdf5
