/// \file
/// Finds per-rank files that were overwritten with a copy of a different rank's file.
///
/// Files of ranks in one layout have storages of the same sizes at the same offsets, so only their elements differ.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Two files of a catalog, the lower index first.
using FilePair = std::pair<std::uint32_t, std::uint32_t>;

/// Returns the reader of a storage's elements, see Reader::bytes_of.
using BytesOf = std::function<std::shared_ptr<const RandomReader>(std::uint32_t storage)>;

/// Pairs of files of equal size that should contain different boxes of these tensors but do not, because all storages
/// of the tensors in one file also exist in the other, at the same offsets and with the same CRC-32s, and not only for
/// replicas. Ignores storages without a CRC-32, and pairs whose different boxes all consist of one repeated value (as
/// in a fresh optimizer). Each of several copies of one file is in at least one pair. \pre the storages of the tensors
/// are located, as far as possible. Cost: n log n in storages, and one small read per storage of a pair.
std::vector<FilePair> copied_files(const Catalog& catalog, std::span<const std::uint32_t> tensors,
                                   const BytesOf& bytes_of);

/// The finding for such a pair.
Error copied_file(const Catalog& catalog, const FilePair& pair);

/// Warns of each such pair once.
class CopyWarnings {
 public:
  /// Adds the warnings also to the catalog. For the parameters, see copied_files.
  void look(Catalog& catalog, std::span<const std::uint32_t> tensors, const BytesOf& bytes_of, Findings& findings);

 private:
  std::set<FilePair> reported_;
};

}  // namespace shard
