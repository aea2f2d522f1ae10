/// \file Decides which target tensors share a storage, and which parts of it they need. Inside libshard/catalog only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/selection.h"

namespace shard {

/// A run of bytes of a source storage that some view uses, and its position in the target's storage.
struct UsedSpan {
  std::int64_t begin, end;  ///< Bytes in the source storage.
  std::int64_t to;          ///< Bytes in the target storage.
};

/// A source storage whose bytes are copied unchanged.
struct SharedStorage {
  std::uint32_t from;           ///< Index of the source storage.
  std::vector<UsedSpan> spans;  ///< Sorted by begin, without overlaps.
  std::int64_t bytes = 0;       ///< The target storage's size: the spans one after the other.
};

/// The selection's tensors seen as views, for formats with storages and strides.
class SharingPlan {
 public:
  /// If `enabled` is false, nothing is shared; `alias` still returns the tensor whose bytes a tensor repeats.
  SharingPlan(const Catalog& source, const Selection& selection, bool enabled);

  /// The index into `storages` of the storage of which this selected tensor is a view. kNoIndex: it is stored
  /// row-major.
  std::uint32_t shared(std::size_t selected) const { return enabled_ ? shared_[selected] : kNoIndex; }
  const std::vector<SharedStorage>& storages() const { return storages_; }
  /// The first selected tensor with an equal view and an equal cast, or kNoIndex.
  std::uint32_t alias(std::size_t selected) const { return alias_[selected]; }
  /// The begin of a view of a shared storage in the target's, in elements.
  std::int64_t first(std::size_t selected) const;
  /// Warnings about tensors that no longer share storage: cast tensors; with `cut`, all but aliases.
  std::vector<std::string> warnings(bool cut) const;

 private:
  const Tensor& tensor(std::size_t selected) const { return source_.tensors[selection_.tensors[selected].source]; }
  const Chunk& chunk(std::size_t selected) const { return source_.chunks[tensor(selected).first_chunk]; }
  std::uint32_t storage(std::size_t selected) const { return source_.stored[chunk(selected).stored].storage; }
  bool is_view(std::size_t selected) const;
  bool is_verbatim(std::size_t selected) const;
  void find_aliases();
  void group_views();
  void collect_spans();

  const Catalog& source_;
  const Selection& selection_;
  const bool enabled_;
  std::vector<std::uint32_t> alias_, shared_;
  std::vector<SharedStorage> storages_;
};

}  // namespace shard
