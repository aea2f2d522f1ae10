/// \file
/// Tensors of one name that several ranks have whole: replicas, or each rank's own values. Inside formats/dcp only.
#pragma once

#include <cstdint>

#include "formats/dcp/item_store.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

/// Metadata of ranks does not tell the two apart. The zips' CRCs do. Threads: one.
class RankCopies {
 public:
  /// Ownership: all must outlive this.
  RankCopies(Catalog& catalog, ItemStore& items, const Findings& findings)
      : catalog_(catalog), items_(items), findings_(findings) {}

  /// Makes an entry for each rank of every tensor whose copies differ. Locates what it compares.
  /// \throws Error  as ItemStore::locate.
  void split_differing();
  /// The same for one tensor, all of whose chunks are located copies. \returns whether they differ.
  bool split_unless_equal(std::uint32_t tensor);

 private:
  bool is_lost(const Chunk& chunk) const;
  bool is_equal(const Chunk& a, const Chunk& b);
  void warn_of_unseen_copies();

  Catalog& catalog_;
  ItemStore& items_;
  const Findings& findings_;
  bool has_warned_ = false;
};

}  // namespace shard::dcp
