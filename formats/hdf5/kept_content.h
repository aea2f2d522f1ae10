/// \file
/// Attributes and datasets of strings as their file stores them, so that HDF5 to HDF5 keeps types, lengths and shapes
/// that objects do not have. Inside formats/hdf5 only.
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

/// Originals::format of sources of HDF5.
inline constexpr std::string_view kOriginalsFormat = "hdf5";

/// The kind of an object in its file.
enum class KeptAs : std::uint8_t {
  kGroupAttribute,
  kDatasetAttribute,
  kDataset,
  kList,  ///< Nothing of HDF5: the list of another format. It becomes an attribute, see writer.cpp.
};

/// The content for Originals::stored, or null for a type that is not written. Ownership: in the arena.
/// \param name     the attribute's, decoded
/// \param objects  how many objects are made of it, each `depth` indexes below its path
const StoredObject* keep_content(Arena& arena, KeptAs as, std::string_view name, const Content& content,
                                 std::uint32_t objects, std::uint32_t depth);

/// A content that is written as it was.
struct KeptContent {
  KeptAs as{};
  std::string attribute;        ///< The name of an attribute.
  std::string name;             ///< The name of the object, or of all that are made of it, without their indexes.
  std::vector<PathPart> parts;  ///< The same as a path; empty if it is `name`.
  OutgoingContent content;

  Path path() const { return Path(parts); }
};
struct KeptContents {
  std::vector<KeptContent> contents{};
  std::vector<bool> is_kept{};  ///< By object: one of the contents has it.
};

/// The contents all of whose objects are in `target`, unchanged and under one path.
/// \throws Error kCorruption  a malformed StoredObject
KeptContents kept_contents(const Catalog& target);

}  // namespace shard::hdf5
