/// \file
/// Items of classes that this build does not read, which a repair copies as they are. Inside formats/dcp only.
#pragma once

#include <cstdint>

#include "formats/dcp/item_store.h"
#include "formats/dcp/metadata.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

/// Where items are kept. Ownership: all must outlive this.
struct ItemKeeper {
  Catalog& catalog;
  ItemStore& items;
  Findings& findings;
  Originals& originals;

  /// Adds a tensor of the catalog to `originals`, and marks it `damaged`. A box whose item is damaged is lost instead.
  /// \param why  is_unread is true for it
  /// \throws Error kUnsupported  its items cannot be copied as they are: compressed, cut, or of a reshaped tensor
  void keep_tensor(std::uint32_t tensor, const Error& why);
  /// The same of an object. \returns why its item is damaged; nothing: it is kept. \throws Error  the same
  std::optional<Error> keep_object(const ObjectEntry& object, const Error& why);

 private:
  bool is_copied(const Item& item) const { return item.length >= 0 && !item.zstd && !item.is_cut; }
  std::optional<Error> fault_of(std::uint32_t item) const;
  Originals::KeptItem keep(std::uint32_t item);
};

}  // namespace shard::dcp
