/// \file Tensors that several ranks store whole under one name: replicas, or a value per rank. Inside formats/dcp only.
#pragma once

#include <cstdint>

#include "formats/dcp/item_store.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

/// The ranks' metadata cannot distinguish replicas from separate values. The CRCs of the zips can. Threads: one.
class RankCopies {
 public:
  /// Ownership: all must outlive this.
  RankCopies(Catalog& catalog, ItemStore& items, const Findings& findings)
      : catalog_(catalog), items_(items), findings_(findings) {}

  /// Adds one entry per rank for every tensor whose copies differ. Locates the storages that it compares.
  /// \throws Error  as ItemStore::locate.
  void split_differing();
  /// Does the same for one tensor. \pre all its chunks are copies and located. \returns whether they differ.
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
